// Operators on the CPU (cpu.h) and on a GPU (cuda.h).
#pragma once

#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"

namespace lehr::ops {

/// Returns whether there are kernels for this tensor, on a GPU or the CPU.
inline bool supports(const at::Tensor& tensor) {
  return cuda::supports(tensor) || cpu::supports(tensor);
}

}  // namespace lehr::ops
