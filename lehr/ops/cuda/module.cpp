// The interface of the module liblehr_cuda.so: the list of kernels, the check whether the device runs them, and the
// stream that they are launched on.
#include "lehr/ops/cuda/module.h"

#include <c10/cuda/CUDAStream.h>

#include <string>

namespace lehr::ops::cuda {

constinit const Entry* first_entry = nullptr;

cudaStream_t current_stream();

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace lehr::ops::cuda

extern "C" __attribute__((visibility("default"))) const lehr::ops::cuda::Entry* lehr_cuda_entries();

extern "C" const lehr::ops::cuda::Entry* lehr_cuda_entries() {
  return lehr::ops::cuda::first_entry;
}

extern "C" __attribute__((visibility("default"))) lehr::ops::cuda::Status lehr_cuda_problem();

extern "C" lehr::ops::cuda::Status lehr_cuda_problem() {
  const lehr::ops::cuda::Status problem = lehr::ops::cuda::find_kernel();
  if (problem == nullptr) {
    return nullptr;
  }
  thread_local std::string text;  // read by the caller; no scope
  text = problem;
  int device = 0;
  int major = 0;
  int minor = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess) {
    text += " (GPU " + std::to_string(device) + ", compute capability " + std::to_string(major) + "." +
            std::to_string(minor) + ")";
  }
  cudaGetLastError();  // as in find_kernel
  return text.c_str();
}
