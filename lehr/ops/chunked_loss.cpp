#include "lehr/ops/chunked_loss.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "lehr/ops/cuda.h"
#include "lehr/ops/global_norm/global_norm.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::ops {

using torch::autograd::AutogradContext;

HeadGradients over_chunks(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    int64_t chunk,
    cpu::GradMask wanted,
    const ChunkLoss& loss,
    const at::Tensor& row_scale) {
  const int64_t count = hidden.size(0);
  HeadGradients unit;
  if (wanted.x) {
    unit.hidden = at::empty_like(hidden);
  }
  if (wanted.weight && count == 0) {
    unit.weight = at::zeros_like(weight);
  }
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t size = std::min(chunk, count - first);
    const at::Tensor rows = hidden.narrow(0, first, size);
    const at::Tensor logits = product(rows, weight.t());  // (size, V); overwritten by their gradient below
    loss(
        {.first = first,
         .logits = logits,
         .gradient = wanted.x || wanted.weight,
         .row_scale = row_scale.defined() ? row_scale.narrow(0, first, size) : row_scale});
    if (wanted.x) {
      put_product(unit.hidden.narrow(0, first, size), logits, weight);
    }
    if (wanted.weight && first == 0) {
      unit.weight = product(logits.t(), rows);
    } else if (wanted.weight) {
      add_product_(unit.weight, logits.t(), rows);
    }
  }
  return unit;
}

void save_unit_gradients(AutogradContext* ctx, const HeadGradients& unit) {
  ctx->saved_data["unit_hidden"] = unit.hidden;
  ctx->saved_data["unit_weight"] = unit.weight;
}

namespace {
// Moves a gradient out of the context, so that it can be scaled in place. A second backward pass (retain_graph) finds
// none and recomputes it.
at::Tensor take(AutogradContext* ctx, const char* name) {
  at::Tensor tensor = ctx->saved_data[name].toTensor();
  ctx->saved_data[name] = at::Tensor();
  return tensor;
}

// Returns whether all counted tokens have the same incoming gradient (`row_scale` is restricted to them), as that of a
// sum or mean. On a GPU decides by the stride alone, without reading values.
bool is_uniform(const at::Tensor& grad, const at::Tensor& row_scale) {
  if (row_scale.is_meta() || row_scale.numel() < 2 || grad.stride(0) == 0) {
    return true;
  }
  return !cuda::on_gpu(grad) && row_scale.eq(row_scale[0]).all().item<bool>();
}

// Scales the unit gradients by the incoming ones. That of weight is undefined if the factors differ between tokens.
HeadGradients scaled(at::Tensor hidden, at::Tensor weight, const at::Tensor& row_scale, bool uniform) {
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
}  // namespace

HeadGradients scaled_unit_gradients(
    AutogradContext* ctx,
    const at::Tensor& grad,
    const at::Tensor& index,
    const std::function<HeadGradients(cpu::GradMask missing, const at::Tensor& row_scale)>& recompute) {
  const cpu::GradMask wanted{.x = ctx->needs_input_grad(0), .weight = ctx->needs_input_grad(1)};
  const at::Tensor row_scale = select_rows(grad, index).contiguous();
  HeadGradients gradients =
      scaled(take(ctx, "unit_hidden"), take(ctx, "unit_weight"), row_scale, is_uniform(grad, row_scale));
  const cpu::GradMask missing{
      .x = wanted.x && !gradients.hidden.defined(), .weight = wanted.weight && !gradients.weight.defined()};
  if (missing.x || missing.weight) {
    const HeadGradients exact = recompute(missing, row_scale);
    gradients.hidden = missing.x ? exact.hidden : gradients.hidden;
    gradients.weight = missing.weight ? exact.weight : gradients.weight;
  }
  if (gradients.hidden.defined()) {
    gradients.hidden = spread(gradients.hidden, index, grad.size(0));
  }
  return gradients;
}

}  // namespace lehr::ops
