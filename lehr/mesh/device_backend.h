// One group with two ways for its data: tensors in host memory by one backend, those of a device by another.
#pragma once

#include <functional>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
}

namespace lehr::mesh {

/// What a group of ranks on devices is made of.
struct DeviceBackendParts {
  /// Carries tensors in host memory, and barriers: they need no device and do not wait for one.
  c10::intrusive_ptr<c10d::Backend> host;
  /// Carries the collectives of all other tensors. Waiting for one of them orders the current stream behind it; the
  /// host goes on.
  c10::intrusive_ptr<c10d::Backend> collectives;
  /// A backend of two ranks, of which number 0 sends and number 1 receives; called once for each (from, to) that this
  /// rank is one of. A device works off what one communicator has been given in order, so two ranks that both send
  /// before they receive would wait for each other forever if both directions, or those of other ranks, shared one.
  std::function<c10::intrusive_ptr<c10d::Backend>(int from, int to)> channel;
  at::Device device = at::kCPU;  ///< Is the current one while works are asked whether they are done.
  /// Which tensors are the device's; another one in tests.
  std::function<bool(const at::Tensor& tensor)> on_device = [](const at::Tensor& tensor) { return !tensor.is_cpu(); };
};

c10::intrusive_ptr<c10d::Backend> make_device_backend(DeviceBackendParts parts);

}  // namespace lehr::mesh
