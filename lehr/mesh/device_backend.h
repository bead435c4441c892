// A group with two backends: one for tensors in host memory, another for tensors on a device.
#pragma once

#include <functional>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
}

namespace lehr::mesh {

/// The parts of a group of ranks on devices.
struct DeviceBackendParts {
  /// Backend for tensors in host memory and for barriers: it uses no device and does not wait for one.
  c10::intrusive_ptr<c10d::Backend> host;
  /// Returns a backend of all members for the collectives of all other tensors. Called once, by all members, at the
  /// first such collective, so a group that only hosts use takes no device memory. Waiting for a collective makes the
  /// current stream wait for it; the host does not block.
  std::function<c10::intrusive_ptr<c10d::Backend>()> collectives;
  /// Returns a backend of two ranks, of which number 0 sends and number 1 receives; called once for each (from, to)
  /// that includes this rank. A device executes the operations of one communicator in order, so two ranks that both
  /// send before they receive would deadlock if both directions, or those of other ranks, shared one.
  std::function<c10::intrusive_ptr<c10d::Backend>(int from, int to)> channel;
  at::Device device = at::kCPU;  ///< The current device while works are queried for completion.
  /// Returns true if a tensor is on the device; tests replace it.
  std::function<bool(const at::Tensor& tensor)> on_device = [](const at::Tensor& tensor) { return !tensor.is_cpu(); };
};

/// Returns a backend that passes each call to the part for the device of its tensors.
c10::intrusive_ptr<c10d::Backend> make_device_backend(DeviceBackendParts parts);

}  // namespace lehr::mesh
