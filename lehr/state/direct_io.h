// What reading and writing past the system's memory (O_DIRECT) needs: blocks, and memory that is aligned to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace lehr::state {

/// What offsets, sizes and addresses must be multiples of: the largest block that disks are known to have.
inline constexpr int64_t kDiskBlock = 4096;
/// Bytes that are moved at once.
inline constexpr int64_t kDiskPiece = int64_t{4} << 20;
/// Below so many bytes the system's memory is as good.
inline constexpr size_t kWorthDirect = size_t{1} << 20;

/// kDiskPiece bytes of this thread, aligned and on huge pages, from which and to which disks are twice as fast; made
/// once, as fresh pages would cost as much as the copy.
std::byte* disk_staging();

/// A file opened twice: as usual, and past the system's memory where the file system can. Both are closed at the end.
class DiskDescriptors {
 public:
  /// Takes `cached`, what open() gave (-1 where it failed), and opens the file again with the same `access` (O_RDONLY,
  /// O_WRONLY).
  DiskDescriptors(const std::filesystem::path& path, int cached, int access);
  ~DiskDescriptors();
  DiskDescriptors(DiskDescriptors&& other) noexcept;
  DiskDescriptors(const DiskDescriptors&) = delete;
  DiskDescriptors& operator=(const DiskDescriptors&) = delete;
  DiskDescriptors& operator=(DiskDescriptors&&) = delete;

  int cached() const { return cached_; }
  int direct() const { return direct_; }  ///< -1 where it cannot be had.

 private:
  int cached_;
  int direct_ = -1;
};

}  // namespace lehr::state
