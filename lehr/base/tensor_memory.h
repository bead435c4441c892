// Memory of large tensors on the CPU: what one leaves is kept for the next, and there is never more of it than tensors
// needed at one time.
//
// A step's tensors come and go in every step. A heap that keeps their memory breaks it into pieces that fit nobody (on
// many ranks whole parameters and gradients come and go among the activations, and it grew to almost twice of what was
// in use); one that gives it back to the system pays for the zeroing of every page again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "lehr/base/map_pages.h"

namespace lehr {

/// Blocks of memory from the system, one for each request. Requests are rounded up to one of eight sizes between two
/// powers of two, and a block that was given back serves the next request of its size, or of a size that is a little
/// smaller (half, below 2 MiB; four fifths, below 16), while what that wastes is within `spare` bytes. Where there is
/// none, the request gets a new one. Its pages are
/// fresh while all blocks together stay within the peak of what was in use, and `spare` bytes; else they come from the
/// blocks that were given back first, of which the rest goes to the system until that holds. May be called by any
/// thread.
class KeptBlocks {
 public:
  /// In bytes, requests as rounded; `wasted` is how much larger the blocks are that serve them; `mapped_ever` counts
  /// fresh pages, so it stands still where every request finds others.
  struct Figures {
    size_t used = 0;
    size_t wasted = 0;
    size_t kept = 0;
    size_t peak = 0;
    size_t mapped_ever = 0;
  };

  /// `spare` bytes are kept beyond what was ever in use at one time.
  explicit KeptBlocks(size_t spare = 0) : spare_(spare) {}
  ~KeptBlocks();
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  /// Memory for `bytes` bytes or more, at a multiple of 64; its content is anything. Throws a runtime error if the
  /// system has no more.
  void* take(size_t bytes);
  /// Takes a block back; false if `block` is none of those that are in use.
  bool give_back(void* block);
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
    size_t request;  // as rounded
  };
  std::unordered_map<void*, Used> used_;
  size_t parts_ = 0;  // of all blocks
  Kept kept_;         // the oldest first
  std::map<size_t, std::list<Kept::iterator>> kept_of_size_;
};

/// From now on tensors of this process of 1 MiB or more, on the CPU, lie in KeptBlocks. For programs, at their start.
void keep_tensor_memory();
/// Of those blocks; zeros before the call.
KeptBlocks::Figures tensor_memory();

/// Memory that a kernel needs for a moment, at a multiple of 64 bytes; its content is anything. It comes from where
/// tensors do, as megabytes that come and go would break a heap into pieces: tensor_memory() has it, profilers and a
/// MemoryMeter do not. Throws std::bad_alloc or a runtime error if the system has no more.
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
