// A stream besides the current one of a device, for copies between host and device while the device computes.
#pragma once

#include <functional>
#include <memory>

#include "lehr/base/torch.h"
#include "lehr/memory/device_queues.h"

namespace lehr {

/// A stream of one accelerator. On the CPU all work is in one order, and all functions except `run` do nothing.
class SideStream {
 public:
  /// Takes a stream of `device` from LibTorch's pool.
  explicit SideStream(at::Device device) : SideStream(device_queues(device)) {}
  /// Takes a stream of `queues`; null for the CPU.
  explicit SideStream(std::shared_ptr<DeviceQueues> queues);
  ~SideStream();
  SideStream(SideStream&&) noexcept;
  SideStream& operator=(SideStream&&) noexcept;

  /// Makes later work of `run` wait for the work that the current stream has been given so far.
  void follow();
  /// Calls `work` with this stream as the current one. Memory that `work` frees may be reused by this stream only. Its
  /// results must not be used before `join` or `wait`, and its inputs must not be freed before.
  void run(const std::function<void()>& work);
  /// Makes later work of the current stream wait for the work that `run` was given so far.
  void join();
  /// mark() sets a mark after the work that `run` was given so far; wait() returns when the device has reached the last
  /// mark. Any thread may call wait().
  void mark();
  void wait() const;

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;  // null on the CPU
};

/// Returns a copy of `tensor`, which is in host memory, on `device`; the tensor itself if that is the CPU. Copies
/// through pinned memory, so the host does not wait.
at::Tensor to_device_pinned(const at::Tensor& tensor, at::Device device);

}  // namespace lehr
