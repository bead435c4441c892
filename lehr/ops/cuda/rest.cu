// The CUDA kernels that are neither norms nor rotations.
#include "lehr/ops/cuda/fill_rest.h"
#include "lehr/ops/cuda/launch.h"
#include "lehr/ops/cuda/module.h"

namespace lehr::ops::cuda {

void fill_rest(Table& table) {
  RestKernels<DeviceLaunch, float>::fill(table.f32);
  RestKernels<DeviceLaunch, Bf16>::fill(table.bf16);
  table.sum = PlainKernels<DeviceLaunch>::sum;
  table.stochastic_round = PlainKernels<DeviceLaunch>::stochastic_round;
  table.known_ids = PlainKernels<DeviceLaunch>::known_ids;
}

Status find_kernel() {
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, in_blocks<SumAll>);
  cudaGetLastError();  // otherwise the next launch would report it
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace lehr::ops::cuda
