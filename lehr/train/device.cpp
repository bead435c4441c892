#include "lehr/train/device.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>

#include "lehr/base/error.h"

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

at::Device choose_device(const std::string& wanted, int64_t world_size) {
  if (world_size > 1) {
    require(
        wanted != "cuda",
        "training.device: several ranks train on CPUs only in this version; expected cpu (or auto), found cuda");
    return at::kCPU;
  }
  if (wanted == "cpu") {
    return at::kCPU;
  }
  const std::string problem = load_cuda();
  if (problem.empty()) {
    return at::Device(at::kCUDA, 0);
  }
  require(wanted == "auto", "training.device: a GPU was asked for, but {}", problem);
  return at::kCPU;
}

}  // namespace lehr::train
