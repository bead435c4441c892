// Largest sizes of a decoder. Larger ones are typing errors, and would overflow counts or exhaust the memory.
#pragma once

#include <cstdint>
#include <string>

namespace lehr::model {

/// The largest width, number of heads, vocabulary or number of positions.
inline constexpr int64_t kLargestSize = 2147483647;
inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostLabels = 1'000'000;
/// Of all layers together.
inline constexpr int64_t kMostExperts = 131'072;
/// A thousand times the largest models.
inline constexpr int64_t kMostParameters = int64_t{1} << 50;
/// Width of the query heads of all layers together; FLOPs at the most positions then fit into 64 bits.
inline constexpr int64_t kMostHeadElements = int64_t{1} << 28;

/// Throws a usage error that names the field, prefixed with `where`, unless 0 < value <= most.
void require_size(const std::string& where, const char* name, int64_t value, int64_t most = kLargestSize);

}  // namespace lehr::model
