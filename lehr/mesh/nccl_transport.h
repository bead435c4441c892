// Ranks as processes on GPUs: NCCL carries what is in their memory, Gloo what is in the host's.
//
// NCCL itself lies in a module of its own, liblehr_nccl.so beside the program (nccl_module.cpp, built where CMake finds
// CUDA's headers), which is opened when ranks on GPUs are wanted: a run on CPUs loads no CUDA libraries.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/gloo_transport.h"

namespace lehr::mesh {

/// The members of a group that are to be connected on their devices: rank `rank` of `size`, which meet in the store.
struct DeviceGroup {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name;
  bool messages = false;  ///< Two ranks, of which number 0 sends and number 1 receives; connected by the first message.
};
/// All members call it at the same time.
using ConnectDevices = std::function<c10::intrusive_ptr<c10d::Backend>(const DeviceGroup& group)>;

struct NcclOptions {
  /// The connections of the hosts, times and messages of failures included.
  GlooOptions host = {};
  at::Device device = at::Device(at::kCUDA, 0);  ///< This rank's.
  ConnectDevices connect = {};                   ///< What stands for NCCL in tests.
  /// Which tensors are the device's; another one in tests.
  std::function<bool(const at::Tensor& tensor)> on_device = [](const at::Tensor& tensor) { return !tensor.is_cpu(); };
};

/// Whether this build has NCCL's module. Else `nccl_transport` throws a usage error that says how to get it.
bool built_with_nccl();

/// As gloo_transport, for tensors on `device` as well. Each group has a communicator of its own: ncclCommSplit would
/// need all ranks of the world at every group, and those of other stages of a pipeline do not come. Throws a usage
/// error if the module or the device is not there.
std::unique_ptr<Transport> nccl_transport(const RankEnvironment& environment, NcclOptions options);

/// The same on hosts that `connect_hosts` connects, with the given function for GlooOptions::disconnect.
std::unique_ptr<Transport> nccl_transport(
    const std::function<std::unique_ptr<Transport>(std::function<void()> disconnect)>& connect_hosts,
    NcclOptions options);

}  // namespace lehr::mesh
