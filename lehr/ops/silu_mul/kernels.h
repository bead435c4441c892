// The kernels of SwiGLU's gate on the CPU and on a GPU. dgate or dup may be null.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// For elements [first, last).
template <class T>
struct SiluMulKernels {
  void (*forward)(const T* gate, const T* up, T* y, int64_t first, int64_t last);
  void (*backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t first, int64_t last);
};

/// For `count` elements.
template <class T>
struct SiluMulLaunches {
  static constexpr cuda::KernelId kId = {.name = "silu_mul", .element = sizeof(T), .version = 1};
  cuda::Status (*forward)(const T* gate, const T* up, T* y, int64_t count);
  cuda::Status (*backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count);
};

}  // namespace lehr::ops
