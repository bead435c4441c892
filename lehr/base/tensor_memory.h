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

namespace lehr {

/// Blocks of memory from the system, one for each request. Requests are rounded up to one of eight sizes between two
/// powers of two, and a block that was given back serves the next request of its size. Before a new one is mapped,
/// those that were given back first go to the system until all together stay within the peak of what was in use,
/// and `spare` bytes. May be called by
/// any thread.
class KeptBlocks {
 public:
  /// In bytes, as rounded; `mapped_ever` counts each block once, so it stands still where every request finds one.
  struct Figures {
    size_t used = 0;
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
  struct Kept {
    void* block;
    size_t size;
  };
  void unmap_oldest();

  size_t spare_;
  mutable std::mutex mutex_;
  Figures figures_;
  std::unordered_map<void*, size_t> used_;
  std::list<Kept> kept_;  // the oldest first
  std::map<size_t, std::list<std::list<Kept>::iterator>> kept_of_size_;
};

/// From now on tensors of this process of 1 MiB or more, on the CPU, lie in KeptBlocks. For programs, at their start.
void keep_tensor_memory();
/// Of those blocks; zeros before the call.
KeptBlocks::Figures tensor_memory();

}  // namespace lehr
