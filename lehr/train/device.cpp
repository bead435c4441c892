#include "lehr/train/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/mesh/backend_variables.h"
#include "lehr/mesh/nccl_transport.h"
#include "lehr/mesh/rank_device.h"
#include "lehr/ops/cuda.h"
#include "lehr/train/gpu_card.h"

namespace lehr::train {

namespace {
// Loads LibTorch's CUDA library, which registers itself; a CPU run never pays for it. Returns why there is no GPU, or
// an empty text.
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

std::string why_unsupported_gpu(int64_t number) {
  const auto card = find_card(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(number)));
  return card ? why_unsupported(*card) : "";
}

at::Device use_gpu(int64_t number) {
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(number));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  ops::cuda::open_kernels();
  return device;
}

constexpr const char* kCublasWorkspace = "CUBLAS_WORKSPACE_CONFIG";
}  // namespace

void set_library_variables(const std::string& wanted_device, bool deterministic) {
  mesh::set_backend_variables();
  if (wanted_device == "cpu" || !deterministic) {
    return;
  }
  if (const auto value = cublas_workspace(std::getenv(kCublasWorkspace))) {
    setenv(kCublasWorkspace, value->c_str(), /*overwrite=*/1);
  }
}

std::optional<std::string> cublas_workspace(const char* given) {
  const std::string value = given == nullptr ? "" : given;
  if (value == ":4096:8" || value == ":16:8") {
    return std::nullopt;
  }
  require(
      value.empty(),
      "debug.deterministic: {} is '{}', with which cuBLAS need not give the same bits twice; expected :4096:8 or "
      ":16:8, or none, for :4096:8",
      kCublasWorkspace,
      value);
  return ":4096:8";
}

void require_deterministic_cublas() {
  require(
      !cublas_workspace(std::getenv(kCublasWorkspace)),
      "debug.deterministic: {} is not set, so cuBLAS need not give the same bits twice; set it to :4096:8, or call "
      "train::set_library_variables at the start of the program",
      kCublasWorkspace);
}

at::Device choose_device(const std::string& wanted) {
  if (wanted == "cpu") {
    return at::kCPU;
  }
  std::string problem = load_cuda();
  if (problem.empty()) {
    problem = why_unsupported_gpu(0);
  }
  if (!problem.empty()) {
    require(wanted == "auto", "training.device (--device): a GPU was requested, but {}", problem);
    return at::kCPU;
  }
  return use_gpu(0);
}

mesh::ConnectOptions choose_rank_device(const std::string& wanted, const mesh::RankEnvironment& ranks) {
  mesh::ConnectOptions options{.require_device = wanted != "auto"};
  if (wanted == "cpu") {
    return options;
  }
  std::string problem = load_cuda();
  mesh::GpuNumber gpu;
  if (problem.empty()) {
    const int visible = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
    gpu = mesh::gpu_of_rank(ranks.local_rank, ranks.local_world_size, visible);
    problem = gpu.problem.empty() ? why_unsupported_gpu(gpu.number) : gpu.problem;
  }
  if (problem.empty()) {
    problem = mesh::open_nccl();
  }
  if (problem.empty()) {
    options.device = use_gpu(gpu.number);
    return options;
  }
  require(wanted == "auto", "training.device (--device): a GPU was requested, but {}", problem);
  options.why_cpu = problem;
  return options;
}

at::Device choose_device(const std::string& wanted, const mesh::Transport* transport) {
  if (transport == nullptr || transport->world_size() == 1) {
    return choose_device(wanted);
  }
  require(
      wanted != "cuda" || !transport->device().is_cpu(),
      "training.device (--device): a GPU was requested, but the ranks are connected by {}, which carries data of CPUs; "
      "expected cpu (or auto)",
      transport->name());
  return transport->device();
}

}  // namespace lehr::train
