// What reading and writing past the system's memory (O_DIRECT) needs: blocks, and memory that is aligned to them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lehr::state {

/// What offsets, sizes and addresses must be multiples of: the largest block that disks are known to have.
inline constexpr int64_t kDiskBlock = 4096;
/// Bytes that are moved at once.
inline constexpr int64_t kDiskPiece = int64_t{4} << 20;
/// Below so many bytes the system's memory is as good.
inline constexpr size_t kWorthDirect = size_t{1} << 20;

/// kDiskPiece bytes of this thread, aligned; made once, as fresh pages would cost as much as the copy.
std::byte* disk_staging();

}  // namespace lehr::state
