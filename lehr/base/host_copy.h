// Numbers on their way from a device to the host, which goes on meanwhile.
#pragma once

#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// A copy of a tensor in host memory, there once the device has come that far. On the CPU it is the tensor itself.
class HostCopy {
 public:
  HostCopy();
  /// Lets the current stream of the tensor's device copy it, behind what the stream was given before.
  explicit HostCopy(const at::Tensor& tensor);
  ~HostCopy();
  HostCopy(HostCopy&&) noexcept;
  HostCopy& operator=(HostCopy&&) noexcept;

  /// The copy, when it is complete. Undefined for an empty object.
  const at::Tensor& wait() const;

 private:
  struct Done;
  at::Tensor copy_;
  std::unique_ptr<Done> done_;  // null on the CPU
};

}  // namespace lehr
