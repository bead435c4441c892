// Gradient clipping by the global norm, and the handling of a norm that is not finite.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::optim {

/// Returns the sum of the squares of all elements of all tensors: float64, 0-dimensional, on the device of the tensors
/// (CPU for an empty list). Ranks with different shards sum their results and take the root. Undefined tensors count as
/// zeros.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

/// Returns the L2 norm over all elements of all tensors, like torch.nn.utils.get_total_norm: float64, 0-dimensional.
at::Tensor global_norm(const std::vector<at::Tensor>& tensors);

/// Returns the factor on the gradients, as in torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). NaN for
/// a norm that is NaN. `max_norm` must be above 0.
double clip_coefficient(double norm, double max_norm);

/// Returns the inverse of clip_coefficient as a float64 0-dimensional tensor on the device of `norm`, without a host
/// sync. Optimizers take it as `grad_divisor`, so clipping needs no separate pass over the gradients.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

/// The behaviour of a run when the gradient norm is infinite or not a number.
enum class NonFinitePolicy {
  stop,  ///< End with a runtime error before the weights are changed.
  skip,  ///< Skip this optimizer step and continue.
};

/// Returns whether the optimizer step with this gradient norm may be done. Throws a runtime error that names `step` if
/// the norm is not finite and the policy is stop; `where` is a sentence that the message includes.
bool admit_step(double norm, NonFinitePolicy policy, int64_t step, const std::string& where = "");

}  // namespace lehr::optim
