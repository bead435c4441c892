// Memory of unsharded parameters. It is freed by reshard and allocated by the next unshard, while autograd keeps the
// tensors over it.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::shard {

/// Counts the bytes of unsharded parameters and all-gather buffers: the current number and its peak.
class ByteCount {
 public:
  void add(int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void remove(int64_t bytes) { now_ -= bytes; }
  void reset_peak() { peak_ = now_; }
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

/// One storage for tensors of given shapes, which can be freed and allocated any number of times.
class GatheredMemory {
 public:
  GatheredMemory(std::vector<std::vector<int64_t>> shapes, const at::TensorOptions& options, ByteCount& count);
  ~GatheredMemory() { release(); }
  GatheredMemory(const GatheredMemory&) = delete;
  GatheredMemory& operator=(const GatheredMemory&) = delete;

  void allocate();
  /// Frees the memory. Tensors over it keep their shape; they must not be read before the next `allocate`, after which
  /// their contents are undefined until they are written.
  void release();
  bool allocated() const { return allocated_; }
  int64_t bytes() const { return bytes_; }
  /// Returns a new tensor over region `index`. Each has a version counter of its own, so writing to it does not
  /// invalidate tensors that autograd saved. Call it only while memory is allocated.
  at::Tensor tensor(size_t index) const;

 private:
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> offsets_;  // in elements
  at::TensorOptions options_;
  ByteCount& count_;
  c10::Storage storage_;
  int64_t bytes_ = 0;
  bool allocated_ = false;
};

}  // namespace lehr::shard
