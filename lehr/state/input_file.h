// A file of which large ranges are read once, past the system's memory where they are not in it already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lehr/state/direct_io.h"

namespace lehr::state {

/// Reading a checkpoint through the system's memory drives out what is in there, and fresh memory is slower than a good
/// disk. So what is cached is copied, and the rest comes directly (O_DIRECT) where the file system can. Every
/// function throws a runtime error with the path and the reason.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  /// Fills `bytes` with what stands at that offset. May be called from many threads at once.
  void read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  bool is_cached(int64_t offset, size_t size) const;
  size_t read_some(int64_t offset, std::span<std::byte> bytes) const;
  size_t read_direct(int64_t offset, std::span<std::byte> bytes) const;

  std::filesystem::path path_;
  DiskDescriptors file_;
};

}  // namespace lehr::state
