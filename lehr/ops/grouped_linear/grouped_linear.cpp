// The autograd function of grouped matmuls: group by group with ops/matmul/matmul.h, or ATen's grouped matmul on a GPU.
#include "lehr/ops/grouped_linear/grouped_linear.h"

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/grouped_linear/cuda.h"
#include "lehr/ops/grouped_linear/groups.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GroupedLinear : AutogradFunction<GroupedLinear> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const at::Tensor& weight,
      const at::Tensor& ends,
      const std::optional<at::Tensor>& bias) {
    const at::Tensor added = bias.value_or(at::Tensor());
    ctx->save_for_backward({save_operand(ctx, "input", input, weight), weight, ends, added});
    note_weight_gradients(ctx, weight);
    return product_of_groups(input, weight, ends, added);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_linear_again");
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    return product_of_groups(saved_or_recomputed(ctx, "input", saved[0]), saved[1], saved[2], saved[3]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_linear_backward");
    refuse_double_backward("grouped_linear");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor& ends = saved[2];
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (ctx->needs_input_grad(0)) {
      grad_input = input_gradient_of_groups(grad, weight, ends);
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
      grad_weight =
          weight_gradient(ctx, weight, [grad, input, ends] { return weight_gradient_of_groups(grad, input, ends); });
    }
    const at::Tensor grad_bias =
        saved[3].defined() && ctx->needs_input_grad(3) ? bias_gradient_of_groups(grad, ends) : at::Tensor();
    return {grad_input, grad_weight, at::Tensor(), grad_bias};
  }
};
}  // namespace

at::Tensor grouped_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "grouped_linear",
         .inputs = {{"rows", input}, {"weight", weight}, {"bias", bias}},
         .shape = {input.size(0), weight.size(1)},
         .dtype = input.scalar_type()});
  }
  const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_linear");
  check_grouped_linear("grouped_linear", input, weight, ends, bias);
  const bool differentiated = will_differentiate(input, weight) || (bias.defined() && will_differentiate(bias));
  const bool in_halves = weight.requires_grad() && WeightGradients::current() != nullptr;
  const bool own_backward = in_halves || (differentiated && RecomputeMatmuls::on());
  const bool on_device = cuda::multiplies_groups(input);
  if (!input.is_cpu() && !runs_on_meta(input) && !on_device && !own_backward) {
    return grouped_linear_reference(input, weight, ends, bias);
  }
  const std::optional<at::Tensor> added = bias.defined() ? std::optional(bias) : std::nullopt;
  const at::Tensor read = on_device || ends.is_meta() ? ends : ends.cpu();
  return differentiated ? recomputable_matmul<GroupedLinear>(GroupedLinear::apply(input, weight, read, added))
                        : product_of_groups(input, weight, read, bias);
}

}  // namespace lehr::ops
