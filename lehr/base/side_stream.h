// A queue of work beside a device's current one: for copies between host and device while the device computes.
#pragma once

#include <functional>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// A stream of one accelerator. On the CPU there is one order of work, and all functions but `run` do nothing.
class SideStream {
 public:
  /// Takes a stream of `device`, out of LibTorch's pool.
  explicit SideStream(at::Device device);
  ~SideStream();
  SideStream(SideStream&&) noexcept;
  SideStream& operator=(SideStream&&) noexcept;

  /// What `run` is given from now on waits for what the current stream has been given so far.
  void follow();
  /// Calls `work` with this stream as the current one. Memory that `work` frees may be taken by this stream only; what
  /// it leaves to others must not be used before `join` or `wait`, and what it reads must not be freed before.
  void run(const std::function<void()>& work);
  /// What the current stream is given from now on waits for what `run` was given so far.
  void join();
  /// Returns when all that `run` was given before the last `mark` is done. Any thread.
  void mark();
  void wait() const;

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;  // null on the CPU
};

/// A copy of `tensor`, which is in host memory, on `device`: itself where that is the CPU. Goes through pinned memory,
/// so that the host does not wait for the copy.
at::Tensor to_device_pinned(const at::Tensor& tensor, at::Device device);

}  // namespace lehr
