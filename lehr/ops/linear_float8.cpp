// Linear layers in float8: the autograd function over ops/float8.h and the products of the device.
#include "lehr/ops/linear_float8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "lehr/base/on_meta.h"
#include "lehr/base/operation_meter.h"
#include "lehr/base/operator_profile.h"
#include "lehr/base/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/float8.h"
#include "lehr/ops/linear_shapes.h"
#include "lehr/ops/matmul.h"
#include "lehr/ops/remake.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRecipe = "recipe";

// a b^T by the units for float8. `fast` sums in fewer bits than float32 has.
at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& b, bool fast) {
  const Float8Rows left = to_float8_rows(a), right = to_float8_rows(b);
  return at::_scaled_mm(
      left.values,
      right.values.t(),
      left.inverse_scales,
      right.inverse_scales.t(),
      /*bias=*/{},
      /*scale_result=*/{},
      a.scalar_type(),
      fast);
}

// a b^T for a (m, k) and b (n, k), with a scale for each row of both.
at::Tensor float8_product(const at::Tensor& a, const at::Tensor& b, bool fast) {
  const int64_t terms = a.size(1);
  if (terms == 0) {
    return at::zeros({a.size(0), b.size(0)}, a.options());
  }
  if (!a.is_cuda()) {
    return product(round_rows_to_float8(a), round_rows_to_float8(b).t());
  }
  if (const int64_t over = terms % kFloat8Multiple; over != 0) {  // tokens; zeros add nothing
    const int64_t more = kFloat8Multiple - over;
    return scaled_product(at::constant_pad_nd(a, {0, more}), at::constant_pad_nd(b, {0, more}), fast);
  }
  return scaled_product(a, b, fast);
}

at::Tensor forward_product(const at::Tensor& input, const at::Tensor& weight) {
  auto shape = input.sizes().vec();
  shape.back() = weight.size(0);
  return at::_unsafe_view(float8_product(rows_of(input), weight, /*fast=*/true), shape);
}

struct LinearFloat8 : torch::autograd::Function<LinearFloat8> {
  // The operands are kept as they came: the gradients need other scales.
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight, Float8Recipe recipe) {
    ctx->save_for_backward({keep_operand(ctx, "input", input, weight), weight});
    ctx->saved_data[kRecipe] = static_cast<int64_t>(recipe);
    note_weight_gradients(ctx, weight);
    return forward_product(input, weight);
  }

  static at::Tensor again(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::product, "lehr::linear_float8_again");
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    return forward_product(kept(ctx, "input", saved[0]), saved[1]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::product, "lehr::linear_float8_backward");
    refuse_double_backward("linear_float8");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = rows_of(grads[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (ctx->needs_input_grad(0)) {
      auto shape = grads[0].sizes().vec();
      shape.back() = weight.size(1);
      grad_input = float8_product(grad, weight.t(), /*fast=*/false).view(shape);
    }
    if (ctx->needs_input_grad(1)) {
      const auto recipe = static_cast<Float8Recipe>(ctx->saved_data[kRecipe].toInt());
      const at::Tensor input = kept(ctx, "input", saved[0]);
      grad_weight = weight_gradient(ctx, weight, [grad, input, recipe] {
        return recipe == Float8Recipe::rowwise ? float8_product(grad.t(), rows_of(input).t(), /*fast=*/false)
                                               : product(grad.t(), rows_of(input));
      });
    }
    return {grad_input, grad_weight, at::Tensor()};
  }
};
}  // namespace

at::Tensor linear_float8(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, Float8Recipe recipe) {
  if (operator_watch() != nullptr || (input.is_meta() && !runs_on_meta())) {
    return at::linear(input, weight, bias);  // of the same shapes
  }
  const OperatorScope scope(OperatorKind::product, "lehr::linear_float8");
  check_linear("linear_float8", input, weight);
  require(
      !input.is_cuda() || (weight.size(0) % kFloat8Multiple == 0 && weight.size(1) % kFloat8Multiple == 0),
      "linear_float8: expected a weight whose sizes are multiples of {}, which a GPU needs, found {}",
      kFloat8Multiple,
      shape_of(weight));
  const at::Tensor output = will_differentiate(input, weight)
                                ? remade_product<LinearFloat8>(LinearFloat8::apply(input, weight, recipe))
                                : forward_product(input, weight);
  return bias.defined() ? output + bias : output;
}

void require_float8(at::Device device, at::ScalarType type, const char* subject) {
  if (device.is_cpu()) {
    return;
  }
  require(device.is_cuda(), "{}: products in float8 run on CPUs and NVIDIA GPUs, found {}", subject, device.str());
  try {
    const at::NoGradGuard no_grad;
    const at::Tensor ones =
        at::ones({kFloat8Multiple, kFloat8Multiple}, at::TensorOptions().device(device).dtype(type));
    linear_float8(ones, ones).sum().item();  // waits for it
  } catch (const c10::Error& error) {
    fail(
        "{}: {} cannot multiply float8 with results in {}; expected a GPU of compute capability 8.9 or more "
        "(Ada, Hopper, ...): {}",
        subject,
        device.str(),
        c10::toString(type),
        error.what_without_backtrace());
  }
}

}  // namespace lehr::ops
