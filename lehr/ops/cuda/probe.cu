// A kernel that does nothing, by which the module learns whether the current device runs its kernels.
#include <cuda_runtime_api.h>

#include "lehr/ops/cuda/module.h"

namespace lehr::ops::cuda {

namespace {
__global__ void do_nothing() {}
}  // namespace

Status find_kernel() {
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, do_nothing);
  cudaGetLastError();  // otherwise the next launch would report it
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace lehr::ops::cuda
