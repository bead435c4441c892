// The divisor that clips gradients, and the handling of a norm that is not finite.
#include "lehr/optim/clip.h"

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::optim {
namespace {

constexpr double kNormOffset = 1e-6;  // torch's; keeps the quotient finite for a norm of 0

}  // namespace

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  require(max_norm > 0, "max_norm: must be above 0, found {}", max_norm);
  const at::NoGradGuard no_grad;
  return ((norm.to(at::kDouble) + kNormOffset) / max_norm).clamp_min(1.0);
}

bool admit_step(double norm, NonFinitePolicy policy, int64_t step, const std::string& where) {
  if (std::isfinite(norm)) {
    return true;
  }
  if (policy == NonFinitePolicy::stop) {
    fail_runtime(
        "step {}: the gradient norm is {}, so the weights are unchanged. {}{}Lower the learning rate, look at "
        "the data of this step, or skip such steps: training.non_finite = \"skip\".",
        step,
        norm,
        where,
        where.empty() ? "" : " ");
  }
  return false;
}

}  // namespace lehr::optim
