// Reference definition of the language-model loss, with all logits at once.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/logit_softcap.h"

namespace lehr::ops::reference {

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    int64_t ignore_index,
    std::optional<double> softcap) {
  const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = ops::softcap(at::linear(hidden, weight), softcap).to(wide);
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, ignore_index);
}

}  // namespace lehr::ops::reference
