// The kernel of AdamW.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// AdamW in float32 arithmetic, on values, gradients and moments of type T.
template <class T>
struct AdamWCall {
  T* value;
  const T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  float grad_divisor;   ///< Divisor of the gradients (clipping).
  float decay;          ///< 1 - lr * weight_decay
  float lerp;           ///< exp_avg += lerp * (grad - exp_avg), with lerp = 1 - beta1 if that is below 0.5.
  bool lerp_from_grad;  ///< Otherwise exp_avg = grad + lerp * (grad - exp_avg), with lerp = -beta1.
  float beta2, one_minus_beta2;
  float negative_step_size;  ///< -lr / (1 - beta1^t)
  float root_divisor;        ///< sqrt(1 - beta2^t)
  float eps;
};

/// On the CPU, for elements [first, last); T is float or Bf16.
template <class T>
struct AdamWKernels {
  void (*adamw)(const AdamWCall<T>& call, int64_t first, int64_t last);
};

}  // namespace lehr::ops
