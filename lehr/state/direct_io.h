// Block sizes and aligned buffers for file access that bypasses the page cache (O_DIRECT).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace lehr::state {

/// Alignment of offsets, sizes and addresses: the largest block size of common disks.
inline constexpr int64_t kDiskBlock = 4096;
/// Bytes per transfer.
inline constexpr int64_t kDiskPiece = int64_t{4} << 20;
/// Smallest size for which bypassing the page cache is faster.
inline constexpr size_t kWorthDirect = size_t{1} << 20;

/// Returns a buffer of kDiskPiece bytes of this thread, aligned and on huge pages, with which disks are twice as fast.
/// It is allocated once per thread, as fresh pages would cost as much as the copy.
std::byte* disk_staging();

/// A file opened twice: normally, and with O_DIRECT if the file system supports it. Both descriptors are closed at the
/// end.
class DiskDescriptors {
 public:
  /// Takes over `cached`, the result of open() (-1 if it failed), and opens the file again with the same `access`
  /// (O_RDONLY, O_WRONLY).
  DiskDescriptors(const std::filesystem::path& path, int cached, int access);
  ~DiskDescriptors();
  DiskDescriptors(DiskDescriptors&& other) noexcept;
  DiskDescriptors(const DiskDescriptors&) = delete;
  DiskDescriptors& operator=(const DiskDescriptors&) = delete;
  DiskDescriptors& operator=(DiskDescriptors&&) = delete;

  int cached() const { return cached_; }
  int direct() const { return direct_; }  ///< -1 if it is not supported.

 private:
  int cached_;
  int direct_ = -1;
};

}  // namespace lehr::state
