// The CUDA kernels of norms and rotations.
#include "lehr/ops/cuda/fill_norms.h"
#include "lehr/ops/cuda/launch.h"
#include "lehr/ops/cuda/module.h"

namespace lehr::ops::cuda {

void fill_norms(Table& table) {
  NormKernels<DeviceLaunch, float>::fill(table.f32);
  NormKernels<DeviceLaunch, Bf16>::fill(table.bf16);
}

}  // namespace lehr::ops::cuda
