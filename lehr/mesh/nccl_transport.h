// Ranks as processes on GPUs: NCCL for tensors in their memory, Gloo for those in host memory.
//
// NCCL itself is in a module of its own, liblehr_nccl.so beside the program (nccl_module.cpp, built if CMake finds
// CUDA's headers). It is opened only if ranks use GPUs: a run on CPUs loads no CUDA libraries.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/gloo_transport.h"

namespace lehr::mesh {

/// The members of a group to connect on their devices: rank `rank` of `size`, with rendezvous in the store.
struct DeviceGroup {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name;
  bool messages = false;  ///< Two ranks, of which number 0 sends and number 1 receives; connected by the first message.
};
/// All members call it at the same time.
using ConnectDevices = std::function<c10::intrusive_ptr<c10d::Backend>(const DeviceGroup& group)>;

/// Options of a transport over NCCL.
struct NcclOptions {
  /// Options of the connections between hosts, including time limits and failure messages.
  GlooOptions host = {};
  at::Device device = at::Device(at::kCUDA, 0);  ///< This rank's device, with an index.
  ConnectDevices connect = {};                   ///< Replaces NCCL in tests.
  /// Returns true if a tensor is on the device; tests replace it.
  std::function<bool(const at::Tensor& tensor)> on_device = [](const at::Tensor& tensor) { return !tensor.is_cpu(); };
};

/// Returns whether this build has NCCL's module. If not, `nccl_transport` throws a usage error that explains how to get
/// it.
bool built_with_nccl();

/// Opens the module, which loads LibTorch's CUDA libraries. Returns "", or the reason why ranks cannot use GPUs.
std::string open_nccl();

/// Returns a name of GPU `device` of this process that is unique among those of all machines. Requires open_nccl().
std::string nccl_device_name(int64_t device);

/// Like gloo_transport, for tensors on `device` as well. Each group has a communicator of its own, created at its first
/// collective on the device: ncclCommSplit would need all ranks of the world for every group, and ranks of other
/// pipeline stages do not call it. Each direction between two ranks has one too, created at its first message. Throws a
/// usage error if the module or the device is missing.
std::unique_ptr<Transport> nccl_transport(const RankEnvironment& environment, NcclOptions options);

/// The same with hosts connected by `connect_hosts`, which receives the function for GlooOptions::disconnect.
std::unique_ptr<Transport> nccl_transport(
    const std::function<std::unique_ptr<Transport>(std::function<void()> disconnect)>& connect_hosts,
    NcclOptions options);

/// Returns the host connections of a transport that nccl_transport returned and that has connected no group yet.
std::unique_ptr<Transport> hosts_of(std::unique_ptr<Transport> nccl);

}  // namespace lehr::mesh
