// A file of which large ranges are read, through the system's memory or past it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lehr/state/direct_io.h"

namespace lehr::state {

/// Who else wants the bytes.
enum class Reading {
  again,  ///< Another soon, maybe: they come through the system's memory and stay there.
  once,   ///< Nobody, as with checkpoints, of which each rank reads its own: what is not cached comes directly
          ///< (O_DIRECT) where the file system can. That drives nothing out, and fresh memory is slower than a good
          ///< disk.
};

/// Every function throws a runtime error with the path and the reason.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path, Reading reading = Reading::once);

  /// Fills `bytes` with what stands at that offset. May be called from many threads at once.
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
