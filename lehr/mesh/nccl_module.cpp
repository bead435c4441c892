// NCCL's part of nccl_transport, in a module of its own (liblehr_nccl.so), since it needs LibTorch's CUDA libraries.
#include "lehr/mesh/nccl_module.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <exception>
#include <string>

namespace {
using std::chrono::milliseconds;

// The shutdown of NCCL's backend waits for the other ranks, which may take forever if one of them has failed.
class Backend : public c10d::ProcessGroupNCCL {
 public:
  using c10d::ProcessGroupNCCL::ProcessGroupNCCL;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  ~Backend() override {
    try {
      std::uncaught_exceptions() > 0 ? abort() : shutdown();
    } catch (const std::exception&) {
      // The connection is broken; its failure was reported where it occurred.
    }
  }
};

}  // namespace

int lehr_nccl_device_count() {
  return c10::cuda::device_count();
}

const char* lehr_nccl_device_name(int device) {
  static thread_local std::string name;  // read by the caller; no scope
  name = "GPU-";
  for (const char byte : at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->uuid.bytes) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name.c_str();
}

c10d::Backend* lehr_nccl_connect(
    c10d::Store* store, int rank, int size, int device, int64_t timeout_milliseconds, const char* name) {
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  // Longer than the watch's limit, so that the watch reports first.
  options->timeout = 2 * milliseconds(timeout_milliseconds) + milliseconds(60'000);
  options->group_name = name;
  auto backend =
      c10::make_intrusive<Backend>(c10::intrusive_ptr<c10d::Store>::reclaim_copy(store), rank, size, options);
  if (device >= 0) {
    // Connects now, when all ranks have arrived, and not in the middle of the first collective.
    backend->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  }
  return backend.release();
}
