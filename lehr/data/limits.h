// Limits on what a file may expand to. The module liblehr_arrow.so has them too, so no other header of Lehr is
// included.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lehr::data {

/// The longest line that is read.
constexpr size_t kMaxLineBytes = size_t{1} << 30;

/// Text is seldom compressed to less than a hundredth, zeros to less than a thousandth.
constexpr int64_t kMaxExpansion = 1000;

/// Returns the bytes that a file of `file_bytes` may expand to: 64 MiB plus a thousand times its size.
constexpr int64_t most_expanded_bytes(int64_t file_bytes) {
  return (int64_t{64} << 20) + kMaxExpansion * file_bytes;
}

}  // namespace lehr::data
