// Distillation loss: the divergence of a chunk of logits, and the autograd function.
#include "lehr/ops/linear_kl/linear_kl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>

#include <algorithm>
#include <limits>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/chunked_loss.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/logit_softcap.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

LinearKl narrowed(const LinearKl& rows, int64_t first, int64_t count) {
  return {
      .loss = rows.loss.narrow(0, first, count),
      .kl = rows.kl.narrow(0, first, count),
      .nll = rows.nll.narrow(0, first, count),
      .agrees = rows.agrees.narrow(0, first, count)};
}

// Sets rows to 0 where the label is ignored, and to NaN where it is out of range. Only a GPU has such labels here.
at::Tensor masked(const at::Tensor& rows, const at::Tensor& labels, int64_t vocabulary) {
  if (!cuda::on_gpu(labels)) {
    return rows;
  }
  const auto mask = [&](const at::Tensor& of_rows) { return rows.dim() == 2 ? of_rows.unsqueeze(1) : of_rows; };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return rows.masked_fill(mask(labels.eq(-1)), 0).masked_fill(mask(labels.ge(vocabulary)), nan);
}

// Sets the values of some tokens from both models' logits (n, V), and overwrites `logits` by their gradient.
void compare_logits(
    const LogitsChunk& part,
    const at::Tensor& teacher_logits,
    const at::Tensor& labels,
    const LinearKlOptions& options,
    const LinearKl& values) {
  const int64_t vocabulary = part.logits.size(1);
  const auto wide = values.kl.scalar_type();
  const double scale = 1 / options.temperature;
  const auto log_softmax = [&](const at::Tensor& x) {
    return scale == 1 ? at::log_softmax(x, -1, wide) : at::log_softmax(x.to(wide) * scale, -1);
  };
  const at::Tensor log_q = log_softmax(part.logits);
  const at::Tensor log_p = log_softmax(teacher_logits);
  const at::Tensor p = log_p.exp();
  const at::Tensor label = labels.clamp(0, vocabulary - 1).unsqueeze(1);  // (n, 1)
  // A token that the teacher excludes (a logit of -inf) adds 0, not 0 * inf.
  values.kl.copy_(masked((log_p - log_q).mul_(p).masked_fill_(p.eq(0), 0).sum(-1), labels, vocabulary));
  const bool same = scale == 1;
  at::Tensor log_q1 = same ? log_q : at::Tensor();  // at temperature 1
  if (!same && options.nll_weight != 0) {
    log_q1 = at::log_softmax(part.logits, -1, wide);
  }
  const at::Tensor log_likelihood =
      log_q1.defined() ? log_q1.gather(1, label).squeeze(1)
                       : part.logits.gather(1, label).squeeze(1).to(wide) - at::logsumexp(part.logits.to(wide), {-1});
  values.nll.copy_(masked(log_likelihood.neg(), labels, vocabulary));
  values.agrees.copy_(masked(part.logits.argmax(-1).eq(teacher_logits.argmax(-1)).to(wide), labels, vocabulary));
  values.loss.copy_(options.kl_weight * values.kl);
  if (options.nll_weight != 0) {
    values.loss.add_(values.nll, options.nll_weight);
  }
  if (!part.gradient) {
    return;
  }
  at::Tensor gradient = log_q.exp().sub_(p).mul_(options.kl_weight * scale);
  if (options.nll_weight != 0) {
    at::Tensor of_nll = log_q1.exp();
    of_nll.scatter_(1, label, of_nll.gather(1, label) - 1);  // softmax - one_hot(label)
    gradient.add_(of_nll, options.nll_weight);
  }
  if (part.row_scale.defined()) {
    gradient.mul_(part.row_scale.unsqueeze(1));
  }
  part.logits.copy_(masked(gradient, labels, vocabulary));
}

// On a CPU some tokens at a time, so that their intermediate results stay in cache.
void compare_chunk(
    const LogitsChunk& chunk,
    const at::Tensor& teacher_logits,
    const at::Tensor& labels,
    const LinearKlOptions& options,
    const LinearKl& values) {
  constexpr int64_t kCachedBytes = 4 << 20;
  const int64_t count = chunk.logits.size(0);
  const int64_t row_bytes = chunk.logits.size(1) * values.kl.element_size();
  const int64_t most = chunk.logits.is_cuda() ? count : std::max<int64_t>(1, kCachedBytes / row_bytes);
  for (int64_t first = 0; first < count; first += most) {
    const int64_t size = std::min(most, count - first);
    const auto part = [&](const at::Tensor& rows) { return rows.defined() ? rows.narrow(0, first, size) : rows; };
    compare_logits(
        {.first = chunk.first + first,
         .logits = part(chunk.logits),
         .gradient = chunk.gradient,
         .row_scale = part(chunk.row_scale)},
        part(teacher_logits),
        part(labels),
        options,
        narrowed(values, first, size));
  }
}

struct Result {
  LinearKl values;     // (counted tokens)
  HeadGradients unit;  // for an incoming gradient of row_scale, or of 1
};

Result over_rows(
    const LabelRows& rows,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const LinearKlOptions& options,
    cpu::GradMask wanted,
    const at::Tensor& row_scale = {}) {
  const int64_t count = rows.hidden.size(0), vocabulary = weight.size(0);
  const at::Tensor teacher_rows = select_rows(teacher.hidden, rows.index);
  const auto empty = [&] {
    return at::empty({count}, rows.hidden.options().dtype(cpu::wide_type(rows.hidden.scalar_type())));
  };
  const LinearKl values{.loss = empty(), .kl = empty(), .nll = empty(), .agrees = empty()};
  // Both models' logits are held, and the derivatives of a softcap.
  const int64_t bytes = (options.softcap ? 2 : 1) * weight.element_size() + teacher.weight.element_size();
  const int64_t chunk = chunk_rows(count, vocabulary, bytes, weight.is_cuda(), kLogitsBytes);
  const ChunkLoss loss = [&](const LogitsChunk& part) {
    const at::Tensor teacher_logits = product(part.part_of(teacher_rows), teacher.weight.t());
    softcap_(teacher_logits, teacher.softcap, /*gradient=*/false);
    const at::Tensor slope = softcap_(part.logits, options.softcap, part.gradient);
    compare_chunk(
        part, teacher_logits, part.part_of(rows.labels), options, narrowed(values, part.first, part.logits.size(0)));
    if (slope.defined()) {
      part.logits.mul_(slope);
    }
  };
  return {.values = values, .unit = over_chunks(rows.hidden, weight, chunk, wanted, loss, row_scale)};
}

LinearKl spread_values(const LinearKl& rows, const at::Tensor& index, int64_t count) {
  return {
      .loss = spread(rows.loss, index, count),
      .kl = spread(rows.kl, index, count),
      .nll = spread(rows.nll, index, count),
      .agrees = spread(rows.agrees, index, count)};
}

struct LinearKlFunction : AutogradFunction<LinearKlFunction> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const TeacherHead& teacher,
      const at::Tensor& labels,
      const LinearKlOptions& options,
      cpu::GradMask wanted) {
    const LabelRows rows = loss_rows(hidden, labels, weight.size(0), options.ignore_index);
    const Result result = over_rows(rows, weight, teacher, options, wanted);
    ctx->save_for_backward({hidden, weight, teacher.hidden, teacher.weight, labels});
    ctx->saved_data["temperature"] = options.temperature;
    ctx->saved_data["kl_weight"] = options.kl_weight;
    ctx->saved_data["nll_weight"] = options.nll_weight;
    ctx->saved_data["ignore_index"] = options.ignore_index;
    ctx->saved_data["softcap"] = saved_softcap(options.softcap);
    ctx->saved_data["teacher_softcap"] = saved_softcap(teacher.softcap);
    save_unit_gradients(ctx, result.unit);
    const LinearKl values = spread_values(result.values, rows.index, labels.size(0));
    ctx->mark_non_differentiable({values.kl, values.nll, values.agrees});
    return {values.loss, values.kl, values.nll, values.agrees};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::linear_kl_backward");
    refuse_double_backward("linear_kl");
    const auto saved = ctx->get_saved_variables();
    const LinearKlOptions options{
        .temperature = ctx->saved_data["temperature"].toDouble(),
        .kl_weight = ctx->saved_data["kl_weight"].toDouble(),
        .nll_weight = ctx->saved_data["nll_weight"].toDouble(),
        .ignore_index = ctx->saved_data["ignore_index"].toInt(),
        .softcap = softcap_of(ctx->saved_data["softcap"].toDouble())};
    const LabelRows rows = loss_rows(saved[0], saved[4], saved[1].size(0), options.ignore_index);
    const HeadGradients gradients =
        scaled_unit_gradients(ctx, grads[0], rows.index, [&](cpu::GradMask missing, const at::Tensor& row_scale) {
          const TeacherHead teacher{
              .hidden = saved[2],
              .weight = saved[3],
              .softcap = softcap_of(ctx->saved_data["teacher_softcap"].toDouble())};
          return over_rows(rows, saved[1], teacher, options, missing, row_scale).unit;
        });
    return {gradients.hidden, gradients.weight, {}, {}, {}, {}};
  }
};

void check(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options) {
  require(
      hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && labels.dim() == 1 &&
          labels.size(0) == hidden.size(0),
      "linear_kl: expected hidden (N, H), weight (V, H) and labels (N), found {}, {} and {}",
      shape_of(hidden),
      shape_of(weight),
      shape_of(labels));
  require(
      teacher.hidden.dim() == 2 && teacher.weight.dim() == 2 && teacher.hidden.size(0) == hidden.size(0) &&
          teacher.hidden.size(1) == teacher.weight.size(1) && teacher.weight.size(0) == weight.size(0),
      "linear_kl: expected the teacher's hidden ({}, its hidden size) and weight ({}, its hidden size), found {} and "
      "{}",
      hidden.size(0),
      weight.size(0),
      shape_of(teacher.hidden),
      shape_of(teacher.weight));
  require(
      hidden.scalar_type() == weight.scalar_type() && hidden.is_floating_point() &&
          teacher.hidden.scalar_type() == teacher.weight.scalar_type() && teacher.hidden.is_floating_point() &&
          labels.scalar_type() == at::kLong,
      "linear_kl: expected hidden and weight of one floating type for each model and int64 labels, found {}, {}, {}, "
      "{} and {}",
      c10::toString(hidden.scalar_type()),
      c10::toString(weight.scalar_type()),
      c10::toString(teacher.hidden.scalar_type()),
      c10::toString(teacher.weight.scalar_type()),
      c10::toString(labels.scalar_type()));
  require(options.temperature > 0, "linear_kl: expected a temperature above 0, found {}", options.temperature);
  check_softcap("linear_kl", options.softcap);
  check_softcap("linear_kl", teacher.softcap);
}
}  // namespace

LinearKl linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options) {
  const OperatorScope scope(OperatorKind::loss, "lehr::linear_kl");
  check(hidden, weight, teacher, labels, options);
  if (hidden.is_meta() && !runs_on_meta()) {
    return reference::linear_kl(hidden, weight, teacher, labels, options);
  }
  if (!cuda::on_gpu(labels)) {
    check_labels(labels, weight.size(0), options.ignore_index);
  }
  const at::Tensor h = hidden.contiguous();
  const at::Tensor w = weight.contiguous();
  const at::Tensor l = labels.contiguous();
  const TeacherHead t{
      .hidden = teacher.hidden.detach().contiguous(),
      .weight = teacher.weight.detach().contiguous(),
      .softcap = teacher.softcap};
  if (will_differentiate(hidden, weight)) {
    const cpu::GradMask wanted{.x = hidden.requires_grad(), .weight = weight.requires_grad()};
    const variable_list values = LinearKlFunction::apply(h, w, t, l, options, wanted);
    return {.loss = values[0], .kl = values[1], .nll = values[2], .agrees = values[3]};
  }
  const LabelRows rows = loss_rows(h, l, w.size(0), options.ignore_index);
  const Result result = over_rows(rows, w, t, options, {.x = false, .weight = false});
  return spread_values(result.values, rows.index, labels.size(0));
}

}  // namespace lehr::ops
