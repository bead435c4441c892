// NCCL's half of nccl_transport: a module of its own (liblehr_nccl.so), since it needs LibTorch's CUDA half.
#include "lehr/mesh/nccl_module.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <exception>

namespace {
using std::chrono::milliseconds;

// NCCL's backend ends in order with the others, which may take forever when one of them has failed.
class Backend : public c10d::ProcessGroupNCCL {
 public:
  using c10d::ProcessGroupNCCL::ProcessGroupNCCL;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  ~Backend() override {
    try {
      std::uncaught_exceptions() > 0 ? abort() : shutdown();
    } catch (const std::exception&) {
      // The connection is broken; what that means was said where it broke.
    }
  }
};

// c10d's own ways to end a process that hangs (with a stack trace a rank) are Lehr's RankWatch's: it says on all ranks
// which collective hung and who did not come. Read when a backend is made.
void leave_failures_to_the_watch() {
  for (const char* variable :
       {"TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_PROPAGATE_ERROR",
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS",
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"}) {
    setenv(variable, "0", /*overwrite=*/1);
  }
}
}  // namespace

int lehr_nccl_device_count() {
  return c10::cuda::device_count();
}

c10d::Backend* lehr_nccl_connect(
    c10d::Store* store, int rank, int size, int device, int64_t timeout_milliseconds, const char* name) {
  leave_failures_to_the_watch();
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  // The watch is to be first.
  options->timeout = 2 * milliseconds(timeout_milliseconds) + milliseconds(60'000);
  options->group_name = name;
  auto backend =
      c10::make_intrusive<Backend>(c10::intrusive_ptr<c10d::Store>::reclaim_copy(store), rank, size, options);
  if (device >= 0) {
    // Now, that all are here, and not in the midst of the first collective.
    backend->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  }
  return backend.release();
}
