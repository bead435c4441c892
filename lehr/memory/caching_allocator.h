// A caching allocator for large CPU tensors. It keeps freed blocks for later tensors, and holds at most 32 MiB more
// than the peak needed.
//
// A training step allocates and frees the same tensors every time. A heap that keeps their memory fragments it (on many
// ranks, whole parameters and gradients are allocated between the activations, and the heap grew to almost twice the
// memory in use); a heap that returns it to the system pays for zeroing every page again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "lehr/memory/map_pages.h"

namespace lehr {

/// Blocks of memory from the system, one per request. Requests are rounded up to one of eight sizes between two powers
/// of two. A freed block serves the next request of its size, or of a slightly smaller size (down to half, below 2 MiB;
/// down to four fifths, below 16 MiB), while the total waste is within `spare` bytes. If no such block is free, the
/// request gets a new one. Its pages are fresh while all blocks together stay within the peak of the memory in use plus
/// `spare` bytes; otherwise they are moved from the free blocks, oldest first, and the rest of those is returned to the
/// system until the limit holds. Thread-safe.
class CachedBlocks {
 public:
  /// Statistics, in bytes. `used` counts rounded requests, `wasted` the excess of the blocks over the requests that
  /// they serve, and `kept` the free blocks. `peak` is the maximum of `used`. `mapped_ever` counts fresh pages, so it
  /// is constant when every request is served from the cache.
  struct Figures {
    size_t used = 0;
    size_t wasted = 0;
    size_t kept = 0;
    size_t peak = 0;
    size_t mapped_ever = 0;
  };

  /// `spare` bytes are kept beyond the peak of the memory in use.
  explicit CachedBlocks(size_t spare = 0) : spare_(spare) {}
  ~CachedBlocks();
  CachedBlocks(const CachedBlocks&) = delete;
  CachedBlocks& operator=(const CachedBlocks&) = delete;

  /// Returns at least `bytes` bytes, aligned to 64, uninitialized. Throws a runtime error if the system is out of
  /// memory.
  void* allocate(size_t bytes);
  /// Frees a block. Returns false if `block` is not one of the blocks in use.
  bool free(void* block);
  Figures figures() const;

 private:
  using Kept = std::list<Pages>;
  Pages take_kept(size_t size);
  Pages take_new(size_t size);
  void fill_from_kept(Pages& pages, size_t bytes);
  void keep(Pages pages);
  void keep_rest(Kept::iterator place, Pages pages);
  Pages take_out(Kept::iterator block);
  void unmap_oldest(size_t bytes);

  size_t spare_;
  mutable std::mutex mutex_;
  Figures figures_;
  struct Used {
    Pages pages;
    size_t request;  // rounded
  };
  std::unordered_map<void*, Used> used_;
  size_t parts_ = 0;  // of all blocks
  Kept kept_;         // oldest first
  std::map<size_t, std::list<Kept::iterator>> kept_of_size_;
};

/// From now on, CPU tensors of 1 MiB or more in this process are allocated from CachedBlocks, with 32 MiB to spare.
/// Programs call it at their start.
void keep_tensor_memory();
/// The figures of those blocks; zeros before keep_tensor_memory().
CachedBlocks::Figures tensor_memory();

/// Temporary memory of a kernel, aligned to 64 bytes, uninitialized. It uses the allocator of tensors, since
/// short-lived blocks of megabytes would fragment a heap: tensor_memory() counts it, profilers and MemoryMeter do not.
/// Throws std::bad_alloc or a runtime error if the system is out of memory.
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes);
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  void* data() const { return data_; }

 private:
  bool kept_;
  void* data_;
};

}  // namespace lehr
