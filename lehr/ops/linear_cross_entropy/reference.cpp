// Reference definition of the language-model loss, with all logits at once.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace lehr::ops::reference {

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index) {
  const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(at::linear(hidden, weight).to(wide), labels, {}, at::Reduction::None, ignore_index);
}

}  // namespace lehr::ops::reference
