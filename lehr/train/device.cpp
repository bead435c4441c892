#include "lehr/train/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/ops/cuda.h"

namespace lehr::train {

namespace {
// LibTorch's CUDA half registers itself when it is loaded; a CPU run never pays for it.
std::string load_cuda() {
  if (!std::filesystem::exists("/dev/nvidiactl") && !std::filesystem::exists("/dev/dxg")) {
    return "there is no NVIDIA driver on this machine";
  }
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return dlerror();
  }
  if (!at::globalContext().hasCUDA()) {
    return "LibTorch found no usable GPU";
  }
  return "";
}
}  // namespace

at::Device choose_device(const std::string& wanted, int64_t local_rank) {
  if (wanted == "cpu") {
    return at::kCPU;
  }
  const std::string problem = load_cuda();
  if (!problem.empty()) {
    require(wanted == "auto", "training.device: a GPU was asked for, but {}", problem);
    return at::kCPU;
  }
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
  const c10::impl::VirtualGuardImpl devices(at::kCUDA);
  require(
      local_rank < devices.deviceCount(),
      "training.device: this rank is number {} on its machine, which has {} usable GPUs; start as many ranks as there "
      "are, or use \"cpu\"",
      local_rank,
      static_cast<int>(devices.deviceCount()));
  devices.setDevice(device);
  ops::cuda::open_kernels();
  return device;
}

at::Device choose_rank_device(const std::string& wanted, int64_t local_rank) {
  return wanted == "cuda" ? choose_device(wanted, local_rank) : at::Device(at::kCPU);
}

at::Device choose_device(const std::string& wanted, const mesh::Transport* transport) {
  if (transport == nullptr || transport->world_size() == 1) {
    return choose_device(wanted);
  }
  require(
      wanted != "cuda" || !transport->device().is_cpu(),
      "training.device: a GPU was asked for, but the ranks are connected by {}, which carries data of CPUs; expected "
      "cpu (or auto)",
      transport->name());
  return transport->device();
}

}  // namespace lehr::train
