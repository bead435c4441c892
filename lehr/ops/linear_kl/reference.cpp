// Reference definition of the distillation loss, with all logits at once.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>

#include "lehr/ops/linear_kl/linear_kl.h"
#include "lehr/ops/logit_softcap.h"

namespace lehr::ops::reference {

LinearKl linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options) {
  const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = softcap(at::linear(hidden, weight), options.softcap).to(wide);  // (N, V)
  const at::Tensor teacher_logits =
      softcap(at::linear(teacher.hidden, teacher.weight), teacher.softcap).to(wide);  // (N, V)
  const at::Tensor log_q = at::log_softmax(logits / options.temperature, -1);
  const at::Tensor log_p = at::log_softmax(teacher_logits / options.temperature, -1);
  const at::Tensor counts = labels.ne(options.ignore_index);
  LinearKl result;
  result.kl = at::kl_div(log_q, log_p.exp(), at::Reduction::None).sum(-1) * counts;
  result.nll = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, options.ignore_index);
  result.agrees = logits.argmax(-1).eq(teacher_logits.argmax(-1)).logical_and(counts).to(wide);
  result.loss = options.kl_weight * result.kl + options.nll_weight * result.nll;
  return result;
}

}  // namespace lehr::ops::reference
