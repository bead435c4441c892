// The autograd function of linear layers in float8, over ops/float8/float8.h and the matmuls of the device.
#include "lehr/ops/linear_float8/linear_float8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/float8/float8.h"
#include "lehr/ops/linear/linear_shapes.h"
#include "lehr/ops/linear_float8/split_scales.h"
#include "lehr/ops/matmul/matmul.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRecipe = "recipe";
constexpr const char* kSplit = "split";
const ContextSlot<Float8Split*> kCurrentSplit("Float8SplitScope");
using Maximum = Float8Split::Maximum;

// Returns left right^T by the GPU's float8 tensor cores. `fast` accumulates in fewer bits than float32 has.
at::Tensor scaled_product(const Float8Rows& left, const Float8Rows& right, at::ScalarType type, bool fast) {
  return at::_scaled_mm(
      left.values,
      right.values.t(),
      left.inverse_scales,
      right.inverse_scales.t(),
      /*bias=*/{},
      /*scale_result=*/{},
      type,
      fast);
}

at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& b, bool fast) {
  return scaled_product(to_float8_rows(a), to_float8_rows(b), a.scalar_type(), fast);
}

// The same if other ranks have more terms of the sums, and `maximum` is over them.
at::Tensor product_over_ranks(const at::Tensor& a, const at::Tensor& b, bool fast, const Maximum& maximum) {
  const auto [left, right] = to_float8_rows_over_ranks(a, b, maximum);
  if (a.is_cuda()) {
    return scaled_product(left, right, a.scalar_type(), fast);
  }
  return product(values_of(left, a.scalar_type()), values_of(right, a.scalar_type()).t());
}

// Returns a b^T for a (m, k) and b (n, k), with a scale per row of both; `maximum` is over ranks that hold other parts
// of these rows, null if there are none.
at::Tensor float8_product(const at::Tensor& a, const at::Tensor& b, bool fast, const Maximum& maximum) {
  const int64_t terms = a.size(1);
  if (terms == 0) {
    return at::zeros({a.size(0), b.size(0)}, a.options());
  }
  if (!a.is_cuda()) {
    return maximum ? product_over_ranks(a, b, fast, maximum)
                   : product(round_rows_to_float8(a), round_rows_to_float8(b).t());
  }
  if (const int64_t over = terms % kFloat8Multiple; over != 0) {  // pad the tokens: zeros do not change the sum
    const int64_t more = kFloat8Multiple - over;
    const at::Tensor left = at::constant_pad_nd(a, {0, more}), right = at::constant_pad_nd(b, {0, more});
    return maximum ? product_over_ranks(left, right, fast, maximum) : scaled_product(left, right, fast);
  }
  return maximum ? product_over_ranks(a, b, fast, maximum) : scaled_product(a, b, fast);
}

// Returns the split that a node's forward saved, or an empty one.
c10::intrusive_ptr<Float8Split> split_of(AutogradContext* ctx) {
  return ctx->saved_data.count(kSplit) == 0 ? c10::make_intrusive<Float8Split>()
                                            : saved_object<Float8Split>(ctx, kSplit);
}

// True if the gradient of the output is rounded for dgrad and wgrad in one pass: on a GPU with kernels, if its rows
// need no padding and this rank holds all of its elements.
bool rounds_both(const at::Tensor& grad, Float8Recipe recipe, const Float8Split& split) {
  return !split.outputs && !split.tokens && grad.is_cuda() && cuda::supports(grad) && recipe == Float8Recipe::rowwise &&
         grad.size(0) > 0 && grad.size(0) % kFloat8Multiple == 0;
}

at::Tensor forward_product(const at::Tensor& input, const at::Tensor& weight, const Maximum& over_inputs) {
  auto shape = input.sizes().vec();
  shape.back() = weight.size(0);
  return at::_unsafe_view(float8_product(rows_of(input), weight, /*fast=*/true, over_inputs), shape);
}

struct LinearFloat8 : AutogradFunction<LinearFloat8> {
  // Saves the operands unrounded, because the gradients need other scales.
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight, Float8Recipe recipe) {
    ctx->save_for_backward({save_operand(ctx, "input", input, weight), weight});
    ctx->saved_data[kRecipe] = static_cast<int64_t>(recipe);
    if (const auto split = Float8SplitScope::current()) {
      ctx->saved_data[kSplit] = c10::IValue::make_capsule(split);
    }
    note_weight_gradients(ctx, weight);
    return forward_product(input, weight, split_of(ctx)->inputs);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::linear_float8_again");
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    return forward_product(saved_or_recomputed(ctx, "input", saved[0]), saved[1], split_of(ctx)->inputs);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::linear_float8_backward");
    refuse_double_backward("linear_float8");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = rows_of(grads[0]);
    const auto recipe = static_cast<Float8Recipe>(ctx->saved_data[kRecipe].toInt());
    const auto split = split_of(ctx);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    auto shape = grads[0].sizes().vec();
    shape.back() = weight.size(1);
    if (ctx->needs_input_grad(1)) {
      start_recomputing(ctx, "input");
    }
    if (ctx->needs_input_grad(0) && ctx->needs_input_grad(1) && rounds_both(grad, recipe, *split)) {
      const auto [rows, columns] = cuda::to_float8(grad, true, true);
      const at::ScalarType type = grad.scalar_type();
      grad_input = scaled_product(rows, to_float8_rows(weight.t()), type, /*fast=*/false).view(shape);
      const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
      const Float8Rows& left = columns;
      grad_weight = weight_gradient(ctx, weight, [left, input, type] {
        return scaled_product(left, to_float8_rows(rows_of(input).t()), type, /*fast=*/false);
      });
      return {grad_input, grad_weight, at::Tensor()};
    }
    if (ctx->needs_input_grad(0)) {
      grad_input = float8_product(grad, weight.t(), /*fast=*/false, split->outputs).view(shape);
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
      grad_weight = weight_gradient(ctx, weight, [grad, input, recipe, split] {
        return recipe == Float8Recipe::rowwise
                   ? float8_product(grad.t(), rows_of(input).t(), /*fast=*/false, split->tokens)
                   : product(grad.t(), rows_of(input));
      });
    }
    return {grad_input, grad_weight, at::Tensor()};
  }
};
}  // namespace

Float8SplitScope::Float8SplitScope(const c10::intrusive_ptr<Float8Split>& split) : scope_(kCurrentSplit, split.get()) {}

c10::intrusive_ptr<Float8Split> Float8SplitScope::current() {
  Float8Split* const split = kCurrentSplit.get();
  return split == nullptr ? c10::intrusive_ptr<Float8Split>() : c10::intrusive_ptr<Float8Split>::reclaim_copy(split);
}

at::Tensor linear_float8(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, Float8Recipe recipe) {
  if (operator_watch() != nullptr || (input.is_meta() && !runs_on_meta())) {
    return at::linear(input, weight, bias);  // with the same shapes
  }
  const OperatorScope scope(OperatorKind::matmul, "lehr::linear_float8");
  check_linear("linear_float8", input, weight);
  require(
      !input.is_cuda() || (weight.size(0) % kFloat8Multiple == 0 && weight.size(1) % kFloat8Multiple == 0),
      "linear_float8: expected a weight whose sizes are multiples of {}, as a GPU requires, found {}",
      kFloat8Multiple,
      shape_of(weight));
  const auto split = Float8SplitScope::current();
  const at::Tensor output = will_differentiate(input, weight)
                                ? recomputable_matmul<LinearFloat8>(LinearFloat8::apply(input, weight, recipe))
                                : forward_product(input, weight, split ? split->inputs : Maximum());
  return bias.defined() ? output + bias : output;
}

void require_float8(at::Device device, at::ScalarType type, const char* subject) {
  if (device.is_cpu()) {
    return;
  }
  require(device.is_cuda(), "{}: float8 matmuls run on CPUs and NVIDIA GPUs, found {}", subject, device.str());
  try {
    const at::NoGradGuard no_grad;
    const at::Tensor ones =
        at::ones({kFloat8Multiple, kFloat8Multiple}, at::TensorOptions().device(device).dtype(type));
    linear_float8(ones, ones).sum().item();  // waits for the result
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
