// Linear layers: the autograd function over ops/matmul/matmul.h.
#include "lehr/ops/linear/linear.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/linear.h>

#include <algorithm>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/linear/linear_shapes.h"
#include "lehr/ops/matmul/blocks.h"
#include "lehr/ops/matmul/matmul.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor forward_product(const at::Tensor& input, const at::Tensor& weight) {
  auto shape = input.sizes().vec();
  shape.back() = weight.size(0);
  // Not a view to autograd: a recomputable output has to be the node's own result (ops/recompute.h).
  return at::_unsafe_view(product(rows_of(input), weight.t()), shape);
}

// Without gradients. ATen would use OpenMP's threads, which sleep between two matmuls (ops/matmul/blocks.h).
at::Tensor few_rows_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (!input.is_cpu() || input.scalar_type() != at::kFloat || weight.scalar_type() != at::kFloat ||
      input.numel() == 0) {
    return at::linear(input, weight, bias);
  }
  auto shape = input.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor output = at::empty(shape, input.options());
  multiply_by_blocks(rows_of(output), rows_of(input), weight.t(), false);
  return bias.defined() ? output + bias : output;
}

struct LinearFunction : AutogradFunction<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight) {
    ctx->save_for_backward({save_operand(ctx, "input", input, weight), weight});
    note_weight_gradients(ctx, weight);
    return forward_product(input, weight);
  }

  // Recomputes the output in backward.
  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::linear_again");
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    return forward_product(saved_or_recomputed(ctx, "input", saved[0]), saved[1]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::linear_backward");
    refuse_double_backward("linear");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = rows_of(grads[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (ctx->needs_input_grad(1)) {
      start_recomputing(ctx, "input");
    }
    if (ctx->needs_input_grad(0)) {
      auto shape = grads[0].sizes().vec();
      shape.back() = weight.size(1);
      grad_input = product(grad, weight).view(shape);  // dgrad: (N, out) (out, in)
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
      // wgrad: (out, N) (N, in), perhaps deferred.
      grad_weight = weight_gradient(ctx, weight, [grad, input] { return product(grad.t(), rows_of(input)); });
    }
    return {grad_input, grad_weight};
  }
};
}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (operator_watch() != nullptr) {
    return at::linear(input, weight, bias);
  }
  const OperatorScope scope(OperatorKind::matmul, "lehr::linear");
  check_linear("linear", input, weight);
  const bool differentiated = will_differentiate(input, weight);
  if (!input.is_cpu() && !runs_on_meta(input) && !(differentiated && input.is_cuda())) {
    return at::linear(input, weight, bias);
  }
  if (!differentiated && few_rows(input.numel() / std::max<int64_t>(weight.size(1), 1))) {
    return few_rows_product(input, weight, bias);
  }
  const at::Tensor output = differentiated ? recomputable_matmul<LinearFunction>(LinearFunction::apply(input, weight))
                                           : forward_product(input, weight);
  return bias.defined() ? output + bias : output;
}

}  // namespace lehr::ops
