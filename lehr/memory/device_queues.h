// Streams, events and pinned host memory of an accelerator, behind an interface. In a run LibTorch implements it; in
// tests a recording fake does (test/base/fake_queues.h), which checks the order of operations.
#pragma once

#include <functional>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// An event, such as a CUDA event: a mark in the work of a stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Sets the mark after all work that `stream` was given so far; replaces an older mark.
  virtual void record(c10::Stream stream) = 0;
  /// Makes later work of `stream` wait for the mark; the host does not wait.
  virtual void block(c10::Stream stream) = 0;
  /// Returns when the device has reached the mark. Any thread may call it.
  virtual void synchronize() = 0;
};

/// The streams of one accelerator. Any thread may call the functions; each thread has its own current stream.
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;
  virtual c10::Stream current() = 0;
  /// Returns one of a few streams other than the default one. It may be in use elsewhere too.
  virtual c10::Stream from_pool() = 0;
  /// Calls `work` with `stream` as this thread's current stream.
  virtual void run_on(c10::Stream stream, const std::function<void()>& work) = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  /// Returns contiguous, uninitialized pinned host memory. LibTorch's allocator rounds its size up to a power of two in
  /// bytes and never returns it to the system.
  virtual at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType type) = 0;
  /// Enqueues on the current stream a copy between a tensor of the device and pinned host memory, converted to the
  /// target's dtype; the host does not wait.
  virtual void copy(const at::Tensor& target, const at::Tensor& source) = 0;
};

/// Returns LibTorch's queues of a device; null for the CPU and meta, where all work is in one order.
std::shared_ptr<DeviceQueues> device_queues(at::Device device);
/// Returns the queues of a device, for code that handles several devices.
using QueuesOf = std::function<std::shared_ptr<DeviceQueues>(at::Device)>;

}  // namespace lehr
