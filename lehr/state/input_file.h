// A file from which large ranges are read, through the page cache or bypassing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lehr/state/direct_io.h"

namespace lehr::state {

/// Expected reuse of the bytes.
enum class Reading {
  again,  ///< They may be read again soon: reads go through the page cache and stay there.
  once,   ///< They are not read again, as with checkpoints, of which each rank reads its own part: ranges that are not
         ///< cached are read with O_DIRECT if the file system supports it. That evicts nothing from the page cache, and
         ///< filling fresh page cache would be slower than a fast disk.
};

/// A file for reading. Every function throws a runtime error with the path and the reason.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path, Reading reading = Reading::once);

  /// Fills `bytes` from that offset. Thread-safe.
  void read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  bool is_cached(int64_t offset, size_t size) const;
  size_t read_some(int64_t offset, std::span<std::byte> bytes) const;
  size_t read_direct(int64_t offset, std::span<std::byte> bytes) const;

  std::filesystem::path path_;
  Reading reading_;
  DiskDescriptors file_;
};

}  // namespace lehr::state
