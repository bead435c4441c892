// A file of known size that several threads or processes fill, each its own ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lehr/state/direct_io.h"

namespace lehr::state {

/// Every function throws a runtime error with the path and the reason; for a full disk also with the bytes that were
/// needed and the bytes that are free.
class OutputFile {
 public:
  /// Makes the file (in place of one that is there) and takes its space on the disk at once, so that a full disk is
  /// found before anything is written. Where the file system cannot take space, the free space is compared.
  static OutputFile create(const std::filesystem::path& path, int64_t num_bytes);
  /// A file that `create` made, perhaps in another process.
  static OutputFile open(const std::filesystem::path& path);

  /// Writes at that offset. Ranges that do not overlap may be written from many threads at once. Whole blocks of a
  /// large range go to the disk directly where the file system can (O_DIRECT): a checkpoint then neither waits for
  /// fresh memory of the system nor drives out what is in it.
  void write(int64_t offset, std::span<const std::byte> bytes) const;
  void write(int64_t offset, std::string_view text) const { write(offset, std::as_bytes(std::span(text))); }
  /// Returns when all that this process wrote is on the disk.
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

/// Makes a new file with this content, and returns when it is on the disk.
void write_synced(const std::filesystem::path& path, std::string_view content);

/// Returns when the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lehr::state
