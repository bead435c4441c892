// Asynchronous device-to-host copies.
#pragma once

#include <memory>

#include "lehr/base/torch.h"
#include "lehr/memory/device_queues.h"

namespace lehr {

/// A copy of a tensor in host memory, which is complete when the device has reached it. On the CPU it is the tensor
/// itself.
class AsyncCopy {
 public:
  AsyncCopy();
  /// Enqueues the copy on the current stream of the tensor's device.
  explicit AsyncCopy(const at::Tensor& tensor) : AsyncCopy(tensor, device_queues(tensor.device())) {}
  /// Enqueues the copy with these queues, which are null for the CPU.
  AsyncCopy(const at::Tensor& tensor, const std::shared_ptr<DeviceQueues>& queues);
  ~AsyncCopy();
  AsyncCopy(AsyncCopy&&) noexcept;
  AsyncCopy& operator=(AsyncCopy&&) noexcept;

  /// Waits for the copy and returns it. Undefined for an empty object.
  const at::Tensor& wait() const;

 private:
  at::Tensor copy_;
  std::unique_ptr<DeviceEvent> done_;  // null on the CPU
};

}  // namespace lehr
