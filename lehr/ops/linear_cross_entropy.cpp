// Language-model loss: the loop over chunks of tokens, and the autograd function.
#include "lehr/ops/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "lehr/base/on_meta.h"
#include "lehr/base/operator_profile.h"
#include "lehr/base/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/dispatch.h"
#include "lehr/ops/global_norm.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/matmul.h"
#include "lehr/ops/reference.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// cpu::cross_entropy_ for any device: (n, V) logits are overwritten by their gradient.
void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  if (dispatch::supports(logits)) {
    return dispatch::cross_entropy_(logits, labels, losses, gradient, row_scale);
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor ignored = labels.eq(-1);
  const at::Tensor bad = labels.lt(-1).logical_or(labels.ge(logits.size(1)));
  const at::Tensor label = labels.clamp(0, logits.size(1) - 1).unsqueeze(1);
  const at::Tensor log_p = at::log_softmax(logits, -1, losses.scalar_type());
  losses.copy_(log_p.gather(1, label).squeeze(1).neg().masked_fill(ignored, 0).masked_fill(bad, nan));
  if (gradient) {
    at::Tensor p = log_p.exp();
    p.scatter_(1, label, p.gather(1, label) - 1);  // dL/dlogits = softmax - one_hot(label)
    p = row_scale.defined() ? p * row_scale.unsqueeze(1) : p;
    logits.copy_(p.masked_fill(ignored.unsqueeze(1), 0).masked_fill(bad.unsqueeze(1), nan));
  }
}

// Returns the tokens that the loss is computed for.
LabelRows rows_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index) {
  return cuda::on_gpu(labels) ? all_rows(hidden, labels, weight.size(0), ignore_index)
                              : rows_that_count(hidden, labels, ignore_index);
}

struct Gradients {
  at::Tensor hidden;  // (counted tokens, H)
  at::Tensor weight;  // (V, H)
};

struct Result {
  at::Tensor losses;  // (counted tokens)
  Gradients unit;     // for an incoming gradient of row_scale, or of 1
};

Result over_chunks(
    const LabelRows& rows, const at::Tensor& weight, cpu::GradMask wanted, const at::Tensor& row_scale = {}) {
  const int64_t count = rows.hidden.size(0);
  const auto type = cpu::wide_type(rows.hidden.scalar_type());
  Result result{.losses = at::empty({count}, rows.hidden.options().dtype(type)), .unit = {}};
  if (wanted.x) {
    result.unit.hidden = at::empty_like(rows.hidden);
  }
  if (wanted.weight && count == 0) {
    result.unit.weight = at::zeros_like(weight);
  }
  const int64_t chunk = chunk_rows(count, weight.size(0), weight.element_size(), weight.is_cuda(), kLogitsBytes);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t size = std::min(chunk, count - first);
    const at::Tensor hidden = rows.hidden.narrow(0, first, size);
    const at::Tensor logits = product(hidden, weight.t());  // (size, V); overwritten by their gradient below
    cross_entropy_(
        logits,
        rows.labels.narrow(0, first, size),
        result.losses.narrow(0, first, size),
        wanted.x || wanted.weight,
        row_scale.defined() ? row_scale.narrow(0, first, size) : row_scale);
    if (wanted.x) {
      put_product(result.unit.hidden.narrow(0, first, size), logits, weight);
    }
    if (wanted.weight && first == 0) {
      result.unit.weight = product(logits.t(), hidden);
    } else if (wanted.weight) {
      add_product_(result.unit.weight, logits.t(), hidden);
    }
  }
  return result;
}

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& labels,
      int64_t ignore_index,
      bool hidden_wanted,
      bool weight_wanted) {
    const LabelRows rows = rows_of(hidden, weight, labels, ignore_index);
    const Result result = over_chunks(rows, weight, {.x = hidden_wanted, .weight = weight_wanted});
    ctx->save_for_backward({hidden, weight, cuda::on_gpu(labels) ? rows.labels : labels});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["unit_hidden"] = result.unit.hidden;
    ctx->saved_data["unit_weight"] = result.unit.weight;
    return spread(result.losses, rows.index, labels.size(0));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::linear_cross_entropy_backward");
    refuse_double_backward("linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const cpu::GradMask wanted{.x = ctx->needs_input_grad(0), .weight = ctx->needs_input_grad(1)};
    const LabelRows rows = cuda::on_gpu(saved[2])
                               ? LabelRows{saved[0], saved[2], {}}
                               : rows_that_count(saved[0], saved[2], ctx->saved_data["ignore_index"].toInt());
    const at::Tensor row_scale = (rows.index.defined() ? grads[0].index_select(0, rows.index) : grads[0]).contiguous();
    Gradients gradients =
        scaled(take(ctx, "unit_hidden"), take(ctx, "unit_weight"), row_scale, is_uniform(grads[0], row_scale));
    const cpu::GradMask missing{
        .x = wanted.x && !gradients.hidden.defined(), .weight = wanted.weight && !gradients.weight.defined()};
    if (missing.x || missing.weight) {
      const Gradients exact = over_chunks(rows, saved[1], missing, row_scale).unit;
      gradients.hidden = missing.x ? exact.hidden : gradients.hidden;
      gradients.weight = missing.weight ? exact.weight : gradients.weight;
    }
    if (gradients.hidden.defined()) {
      gradients.hidden = spread(gradients.hidden, rows.index, saved[2].size(0));
    }
    return {gradients.hidden, gradients.weight, {}, {}, {}, {}};
  }

 private:
  // Moves a gradient out of the context, so that it can be scaled in place. A second backward pass (retain_graph) finds
  // none and recomputes it.
  static at::Tensor take(AutogradContext* ctx, const char* name) {
    at::Tensor tensor = ctx->saved_data[name].toTensor();
    ctx->saved_data[name] = at::Tensor();
    return tensor;
  }

  // Whether all counted tokens have the same incoming gradient (`row_scale` is restricted to them), as that of a sum or
  // mean. On a GPU decides by the stride alone, without reading values.
  static bool is_uniform(const at::Tensor& grad, const at::Tensor& row_scale) {
    if (row_scale.is_meta() || row_scale.numel() < 2 || grad.stride(0) == 0) {
      return true;
    }
    return !cuda::on_gpu(grad) && row_scale.eq(row_scale[0]).all().item<bool>();
  }

  // Scales the unit gradients by the incoming ones. That of weight is undefined if the factors differ between tokens.
  static Gradients scaled(at::Tensor hidden, at::Tensor weight, const at::Tensor& row_scale, bool uniform) {
    if (row_scale.numel() == 0 || row_scale.is_meta()) {
      return {hidden, weight};
    }
    if (uniform) {
      scale_({hidden, weight}, row_scale[0]);
      return {hidden, weight};
    }
    if (hidden.defined()) {
      hidden.mul_(row_scale.unsqueeze(1));
    }
    return {hidden, {}};
  }
};
}  // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "linear_cross_entropy",
         .inputs = {{"hidden", hidden}, {"weight", weight}, {"labels", labels}},
         .shape = {hidden.size(0)},
         .dtype = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat});
  }
  const OperatorScope scope(OperatorKind::loss, "lehr::linear_cross_entropy");
  require(
      hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && labels.dim() == 1 &&
          labels.size(0) == hidden.size(0),
      "linear_cross_entropy: expected hidden (N, H), weight (V, H) and labels (N), found {}, {} and {}",
      shape_of(hidden),
      shape_of(weight),
      shape_of(labels));
  require(
      hidden.scalar_type() == weight.scalar_type() && hidden.is_floating_point() && labels.scalar_type() == at::kLong,
      "linear_cross_entropy: expected hidden and weight of one floating type and int64 labels, found {}, {} and {}",
      c10::toString(hidden.scalar_type()),
      c10::toString(weight.scalar_type()),
      c10::toString(labels.scalar_type()));
  if (hidden.is_meta() && !runs_on_meta()) {
    return reference::linear_cross_entropy(hidden, weight, labels, ignore_index);
  }
  if (!cuda::on_gpu(labels)) {
    check_labels(labels, weight.size(0), ignore_index);
  }
  const at::Tensor h = hidden.contiguous();
  const at::Tensor w = weight.contiguous();
  const at::Tensor l = labels.contiguous();
  if (will_differentiate(hidden, weight)) {
    return LinearCrossEntropyFunction::apply(h, w, l, ignore_index, hidden.requires_grad(), weight.requires_grad());
  }
  const LabelRows rows = rows_of(h, w, l, ignore_index);
  return spread(over_chunks(rows, w, {.x = false, .weight = false}).losses, rows.index, labels.size(0));
}

}  // namespace lehr::ops
