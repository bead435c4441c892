// Memory of gathered parameters: it comes and goes, while the tensors that lie in it live on in autograd's graphs.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::shard {

/// How many bytes gathered parameters take now, and took at most.
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

/// Room for tensors of given shapes one behind the other, which is allocated and released any number of times.
class GatheredMemory {
 public:
  GatheredMemory(std::vector<std::vector<int64_t>> shapes, const at::TensorOptions& options, ByteCount& count);
  ~GatheredMemory() { release(); }
  GatheredMemory(const GatheredMemory&) = delete;
  GatheredMemory& operator=(const GatheredMemory&) = delete;

  void allocate();
  /// Tensors that lie here keep their shape and must not be read until the next `allocate`, and what is written then.
  void release();
  bool allocated() const { return allocated_; }
  int64_t bytes() const { return bytes_; }
  /// Tensor number `index`, as a new one: writing to it changes no version that autograd noted for another. Only while
  /// there is memory.
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
