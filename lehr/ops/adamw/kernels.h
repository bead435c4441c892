// The kernels of AdamW.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// The numbers of a step of AdamW that do not depend on the number of the step.
struct AdamWConstants {
  float decay;          ///< 1 - lr * weight_decay
  float lerp;           ///< exp_avg += lerp * (grad - exp_avg), with lerp = 1 - beta1 if that is below 0.5.
  bool lerp_from_grad;  ///< Otherwise exp_avg = grad + lerp * (grad - exp_avg), with lerp = -beta1.
  float beta2, one_minus_beta2;
  float eps;
};

/// AdamW in float32 arithmetic, on values, gradients and moments of type T.
template <class T>
struct AdamWCall {
  T* value;
  const T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  float grad_divisor;  ///< Divisor of the gradients (clipping).
  AdamWConstants constants;
  float negative_step_size;  ///< -lr / (1 - beta1^t)
  float root_divisor;        ///< sqrt(1 - beta2^t)
};

/// On the CPU, for elements [first, last); T is float or Bf16.
template <class T>
struct AdamWKernels {
  void (*adamw)(const AdamWCall<T>& call, int64_t first, int64_t last);
};

namespace cuda {
/// Tensors that one launch updates, divided into pieces of kAdamWPiece elements. Smaller than 4 KB, which every GPU
/// accepts as a launch's arguments.
template <class T>
struct AdamWList {
  static constexpr int64_t kMost = 64;
  struct One {
    T* value;
    const T* grad;
    T* exp_avg;
    T* exp_avg_sq;
    int64_t count;        ///< Elements.
    int64_t first_piece;  ///< Number of pieces of all tensors before.
    int64_t number;       ///< Its index in the arrays below.
  };
  One of[kMost];
  int64_t tensors;
  int64_t pieces;  ///< Of all tensors.
  AdamWConstants constants;
  const float* negative_step_size;  ///< On the device, per tensor, as in AdamWCall.
  const float* root_divisor;        ///< On the device, per tensor.
  const float* grad_divisor;        ///< On the device. Null: 1.
  const float* found_inf;           ///< On the device: if it is not 0, nothing is written. Null: 0.
};
static_assert(sizeof(AdamWList<float>) < 4096);
constexpr int64_t kAdamWPiece = 1 << 14;

/// On a GPU.
template <class T>
struct AdamWLaunches {
  static constexpr KernelId kId = {.name = "adamw", .element = sizeof(T), .version = 1, .layout = sizeof(AdamWList<T>)};
  Status (*adamw)(const AdamWList<T>& list);
};
}  // namespace cuda

}  // namespace lehr::ops
