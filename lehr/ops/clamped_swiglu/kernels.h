// The kernels of gpt-oss's gate on the CPU and on a GPU.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// For elements [first, last) of y and dy; those of gate_up and its gradient are the pairs 2 first to 2 last.
template <class T>
struct ClampedSwiGLUKernels {
  void (*forward)(const T* gate_up, T* y, double limit, double alpha, int64_t first, int64_t last);
  void (*backward)(const T* dy, const T* gate_up, T* dgate_up, double limit, double alpha, int64_t first, int64_t last);
};

/// For `count` pairs.
template <class T>
struct ClampedSwiGLULaunches {
  static constexpr cuda::KernelId kId = {.name = "clamped_swiglu", .element = sizeof(T), .version = 1};
  cuda::Status (*forward)(const T* gate_up, T* y, double limit, double alpha, int64_t count);
  cuda::Status (*backward)(const T* dy, const T* gate_up, T* dgate_up, double limit, double alpha, int64_t count);
};

}  // namespace lehr::ops
