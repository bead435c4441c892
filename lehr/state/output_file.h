// A file of known size that several threads or processes fill, each its own ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lehr/state/direct_io.h"

namespace lehr::state {

/// A file for writing. Every function throws a runtime error with the path and the reason; for a full disk also with
/// the bytes needed and free.
class OutputFile {
 public:
  /// Creates the file (replacing an existing one) and allocates its space immediately, so that a full disk is found
  /// before anything is written. If the file system cannot allocate space, the free space is checked instead.
  static OutputFile create(const std::filesystem::path& path, int64_t num_bytes);
  /// Opens a file that `create` made, perhaps in another process.
  static OutputFile open(const std::filesystem::path& path);

  /// Writes at that offset. Several threads may write ranges that do not overlap concurrently. Whole blocks of a large
  /// range are written with O_DIRECT if the file system supports it, so that a checkpoint neither waits for fresh page
  /// cache nor evicts from it.
  void write(int64_t offset, std::span<const std::byte> bytes) const;
  void write(int64_t offset, std::string_view text) const { write(offset, std::as_bytes(std::span(text))); }
  /// Waits until everything that this process wrote is on disk.
  void sync() const;
  /// Throws a runtime error if the file has another size.
  void require_size(int64_t num_bytes) const;

 private:
  OutputFile(std::filesystem::path path, int fd);
  size_t write_direct(int64_t offset, std::span<const std::byte> blocks) const;
  void write_cached(int64_t offset, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  DiskDescriptors file_;
};

/// Creates a new file with this content and waits until it is on disk.
void write_synced(const std::filesystem::path& path, std::string_view content);

/// Waits until the names in a folder are on disk.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lehr::state
