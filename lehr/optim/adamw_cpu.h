// AdamW's step on the CPU: all parameters of a bucket in one parallel loop.
#pragma once

#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/adamw/kernels.h"

namespace lehr::optim {

/// A parameter's tensors, contiguous and of one dtype and size.
struct AdamWTensors {
  at::Tensor value, grad, exp_avg, exp_avg_sq;
  double step = 1;  ///< Steps taken, including this one.
};

/// Hyperparameters of a step, and the divisor of the gradients (clipping).
struct AdamWNumbers {
  double lr, beta1, beta2, eps, weight_decay;
  float grad_divisor = 1;
};

/// Computed in float64, and then rounded, as in ATen's kernel.
ops::AdamWConstants constants_of(const AdamWNumbers& numbers);

/// Increments the version counters of what a step has written, as ATen's operators do.
void mark_written(const std::vector<AdamWTensors>& tensors);

/// Returns whether adamw_on_cpu_ supports this parameter: float32 or bfloat16 on the CPU.
bool supports_adamw_on_cpu(const at::Tensor& value);

/// Does a step of torch.optim.AdamW, in float32. Gradients are not changed. The bits depend neither on the number of
/// threads nor on an element's place. They are those of at::_fused_adamw_ on a CPU with fused multiply-adds, except for
/// the last elements of each of its threads, where it rounds once more.
void adamw_on_cpu_(const std::vector<AdamWTensors>& tensors, const AdamWNumbers& numbers);

}  // namespace lehr::optim
