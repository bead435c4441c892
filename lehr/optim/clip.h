// Gradient clipping by the global norm, and the handling of a norm that is not finite.
#pragma once

#include <string>

#include "lehr/base/torch.h"
#include "lehr/ops/global_norm/global_norm.h"

namespace lehr::optim {

/// The L2 norm over all elements of all tensors, like torch.nn.utils.get_total_norm. Ranks with different shards add
/// their sums of squares and take the root.
using ops::global_norm;
using ops::sum_of_squares;

/// Returns the inverse of the factor on the gradients, which is min(1, max_norm / (norm + 1e-6)) as in
/// torch.nn.utils.clip_grad_norm_: float64, 0-dimensional, on the device of `norm`, without a host sync. NaN for a norm
/// that is NaN. `max_norm` must be above 0. Optimizers take it as `grad_divisor`, so clipping needs no separate pass
/// over the gradients.
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
