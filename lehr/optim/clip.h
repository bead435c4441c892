// Gradient clipping by the global norm, and what to do when that norm is not finite.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::optim {

/// The sum of the squares of all elements of all tensors: float64, 0-dimensional, on the device of the tensors (CPU for
/// an empty list). Ranks that hold different shards add theirs and take the root. Undefined tensors count as zeros.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

/// The L2 norm over all elements of all tensors, as torch.nn.utils.get_total_norm: float64, 0-dimensional.
at::Tensor global_norm(const std::vector<at::Tensor>& tensors);

/// What gradients are multiplied by, as in torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). NaN for a
/// norm that is NaN. `max_norm` must be above 0.
double clip_coefficient(double norm, double max_norm);

/// The inverse of clip_coefficient as a float64 0-dimensional tensor on the device of `norm`, without waiting for that
/// device: what AdamW::step takes as `grad_divisor`, so that clipping needs no pass of its own over the gradients.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

/// What a run does when the gradient norm is infinite or not a number.
enum class NonFinitePolicy {
  stop,  ///< End with a runtime error before the weights are touched.
  skip,  ///< Leave out this optimizer step and go on.
};

/// Whether the optimizer step with this gradient norm is to be taken. Throws a runtime error that names `step` when the
/// norm is not finite and the policy is stop.
bool admit_step(double norm, NonFinitePolicy policy, int64_t step);

}  // namespace lehr::optim
