#include "lehr/shard/vocab_parallel_loss.h"

#include <limits>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/chunked_loss.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/logit_softcap.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::shard {

namespace {
using mesh::Group;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A rank's rows of the head, and the softcap of its logits.
struct OwnHead {
  at::Tensor weight;
  std::optional<double> cap;
};

// Calls body(first, count, logits, slope) for chunks of tokens, with this rank's logits (count, V of this rank) in the
// wide type, and with `gradient` the derivative of their softcap, if there is one. The body may overwrite them.
template <class Body>
void for_chunks(const at::Tensor& hidden, const OwnHead& head, bool gradient, const Body& body) {
  const at::Tensor& weight = head.weight;
  const int64_t count = hidden.size(0);
  const auto wide = ops::cpu::wide_type(hidden.scalar_type());
  const int64_t chunk = ops::chunk_rows(
      count, weight.size(0), static_cast<int64_t>(c10::elementSize(wide)), weight.is_cuda(), kPartLogitsBytes);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t size = std::min(chunk, count - first);
    const at::Tensor logits = ops::product(hidden.narrow(0, first, size), weight.t()).to(wide);
    const at::Tensor slope = ops::softcap_(logits, head.cap, gradient);
    body(first, size, logits, slope);
  }
}

struct RowSums {
  at::Tensor losses;       // (N)
  at::Tensor log_sum_exp;  // (N), over the whole vocabulary
};

// Log-sum-exp over the whole vocabulary: each rank sums exp(logit - its maximum), and rescales the sum to the maximum
// of all ranks before they are added.
RowSums sum_rows(const at::Tensor& hidden, const OwnHead& head, const at::Tensor& own_rows, const Group& group) {
  const auto options = hidden.options().dtype(ops::cpu::wide_type(hidden.scalar_type()));
  at::Tensor largest = at::full({hidden.size(0)}, -std::numeric_limits<double>::infinity(), options);
  const at::Tensor sums = at::zeros({2, hidden.size(0)}, options);  // sum of exponentials; the label's logit
  if (hidden.size(0) == 0) {
    return {sums[0], sums[1]};
  }
  if (head.weight.size(0) > 0) {
    for_chunks(hidden, head, false, [&](int64_t first, int64_t size, const at::Tensor& logits, const at::Tensor&) {
      sums[1].narrow(0, first, size).copy_(logits_of_labels(logits, own_rows.narrow(0, first, size)));
      const at::Tensor row_largest = logits.amax(1);
      largest.narrow(0, first, size).copy_(row_largest);
      sums[0].narrow(0, first, size).copy_(logits.sub_(row_largest.unsqueeze(1)).exp_().sum(1));
    });
  }
  const at::Tensor own_largest = largest.clone();
  group.all_reduce_max(largest);
  sums[0].mul_((own_largest - largest).exp_());  // exp(-inf) = 0 on a rank without rows
  group.all_reduce(sums);
  const at::Tensor log_sum_exp = largest + sums[0].log();
  return {log_sum_exp - sums[1], log_sum_exp};
}

// The gradients for an incoming gradient of row_scale (N); that of hidden is partial.
ops::HeadGradients gradients_of(
    const at::Tensor& hidden,
    const OwnHead& head,
    const at::Tensor& own_rows,
    const at::Tensor& log_sum_exp,
    const at::Tensor& row_scale,
    bool hidden_wanted,
    bool weight_wanted) {
  const at::Tensor& weight = head.weight;
  ops::HeadGradients gradients{
      .hidden = hidden_wanted ? at::zeros_like(hidden) : at::Tensor(),
      .weight = weight_wanted ? at::zeros_like(weight) : at::Tensor()};
  if (weight.size(0) == 0) {
    return gradients;
  }
  for_chunks(hidden, head, true, [&](int64_t first, int64_t size, const at::Tensor& logits, const at::Tensor& slope) {
    // dL/dlogits = (softmax - one_hot(label)) * row_scale
    const at::Tensor p = logits.sub_(log_sum_exp.narrow(0, first, size).unsqueeze(1)).exp_();
    subtract_one_hot_(p, own_rows.narrow(0, first, size));
    p.mul_(row_scale.narrow(0, first, size).unsqueeze(1));
    if (slope.defined()) {
      p.mul_(slope);
    }
    const at::Tensor gradient = p.to(hidden.scalar_type());  // of the logits, (count, V of this rank)
    if (hidden_wanted) {
      ops::put_product(gradients.hidden.narrow(0, first, size), gradient, weight);
    }
    if (weight_wanted) {
      ops::add_product_(gradients.weight, gradient.t(), hidden.narrow(0, first, size));
    }
  });
  return gradients;
}

struct VocabParallelLoss : AutogradFunction<VocabParallelLoss> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& labels,
      const VocabularyPart* part,
      const Group* group,
      int64_t ignore_index,
      std::optional<double> cap) {
    const ops::LabelRows rows = ops::loss_rows(hidden, labels, part->size, ignore_index);
    const at::Tensor own_rows = part->own_row_of(rows.labels);
    const RowSums sums = sum_rows(rows.hidden, {weight, cap}, own_rows, *group);
    const at::Tensor gpu_labels = ops::cuda::on_gpu(labels) ? rows.labels : at::Tensor();
    ctx->save_for_backward({hidden, weight, rows.index, own_rows, sums.log_sum_exp, gpu_labels});
    ctx->saved_data["vocabulary"] = part->size;
    ctx->saved_data["softcap"] = ops::saved_softcap(cap);
    return ops::spread(masked_by_labels(sums.losses, gpu_labels, part->size), rows.index, labels.size(0));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::vocab_parallel_linear_cross_entropy_backward");
    ops::refuse_double_backward("vocab_parallel_linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &index = saved[2];
    const at::Tensor row_scale =
        masked_by_labels(ops::select_rows(grads[0], index), saved[5], ctx->saved_data["vocabulary"].toInt());
    ops::HeadGradients gradients = gradients_of(
        ops::select_rows(hidden, index),
        {weight, ops::softcap_of(ctx->saved_data["softcap"].toDouble())},
        saved[3],
        saved[4],
        row_scale,
        ctx->needs_input_grad(0),
        ctx->needs_input_grad(1));
    if (gradients.hidden.defined()) {
      gradients.hidden = ops::spread(gradients.hidden, index, hidden.size(0));
    }
    return {gradients.hidden, gradients.weight, {}, {}, {}, {}, {}};
  }
};
}  // namespace

at::Tensor vocab_parallel_linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    const VocabularyPart& part,
    const Group& group,
    int64_t ignore_index,
    std::optional<double> softcap) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "vocab_parallel_linear_cross_entropy",
         .ranks = group.ranks(),
         .inputs =
             {{"hidden", hidden, Placement::replicate()},
              {"weight", weight, Placement::shard(0)},
              {"labels", labels, Placement::invariant()}},
         .gives = Placement::invariant(),
         .shape = {hidden.size(0)},
         .dtype = ops::cpu::wide_type(hidden.scalar_type()),
         .like = 2});
  }
  const OperatorScope scope(OperatorKind::loss, "lehr::vocab_parallel_linear_cross_entropy");
  check_head("vocab_parallel_linear_cross_entropy", hidden, weight, labels, part);
  ops::check_softcap("vocab_parallel_linear_cross_entropy", softcap);
  require(
      hidden.scalar_type() == weight.scalar_type() && hidden.is_floating_point() && labels.scalar_type() == at::kLong,
      "vocab_parallel_linear_cross_entropy: expected hidden and weight of one floating type and int64 labels, found "
      "{}, {} and {}",
      c10::toString(hidden.scalar_type()),
      c10::toString(weight.scalar_type()),
      c10::toString(labels.scalar_type()));
  if (!ops::cuda::on_gpu(labels)) {  // where the host would wait, a wrong label makes the loss NaN
    ops::check_labels(labels, part.size, ignore_index);
  }
  const at::Tensor h = hidden.contiguous(), w = weight.contiguous(), l = labels.contiguous();
  return VocabParallelLoss::apply(h, w, l, &part, &group, ignore_index, softcap);
}

}  // namespace lehr::shard
