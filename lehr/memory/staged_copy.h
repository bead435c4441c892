// Copies of device tensors to pageable host memory through a few pinned buffers of fixed size.
//
// A device copies at full speed only to pinned memory, which cannot be swapped, is allocated in powers of two and is
// never returned to the system. So only a part of the data is in pinned memory at any time.
#pragma once

#include <memory>
#include <vector>

#include "lehr/memory/side_stream.h"

namespace lehr {

/// Used by one thread at a time; but follow() must be called by the thread whose current stream wrote the sources.
class StagedCopy {
 public:
  /// `pinned_bytes` is the total of pinned memory, a power of two of at least 64; it is allocated by the first copy and
  /// reused.
  StagedCopy(std::shared_ptr<DeviceQueues> queues, int64_t pinned_bytes);

  /// Makes later copies wait for the work that the current stream has been given so far.
  void follow() { stream_.follow(); }
  /// Copies `source`, a tensor of the device, to `target`, contiguous host memory of its shape, in the target's dtype.
  /// The source must not change, and the target is not complete, before finish() has returned.
  void copy(const at::Tensor& target, const at::Tensor& source);
  /// Returns when all targets are complete.
  void finish();

 private:
  struct Buffer {
    at::Tensor pinned;  // bytes
    std::unique_ptr<DeviceEvent> done;
    at::Tensor target;  // the destination, one-dimensional; undefined if the buffer is free
  };
  void empty(Buffer& buffer);
  static constexpr int64_t kBuffers = 4;  // one is emptied, one is being filled, the others can start without a wait

  std::shared_ptr<DeviceQueues> queues_;
  int64_t buffer_bytes_;
  SideStream stream_;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
};

}  // namespace lehr
