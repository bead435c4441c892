// The autograd function of grouped matmuls, in the tensors' dtype or in float8.
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
using Holder = c10::intrusive_ptr<torch::CustomClassHolder>;

struct GroupedLinear : AutogradFunction<GroupedLinear> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const at::Tensor& weight,
      const at::Tensor& ends,
      const std::optional<at::Tensor>& bias,
      const Holder& matmuls) {
    const at::Tensor added = bias.value_or(at::Tensor());
    ctx->save_for_backward({save_operand(ctx, "input", input, weight), weight, ends, added});
    ctx->saved_data["matmuls"] = c10::IValue::make_capsule(matmuls);
    note_weight_gradients(ctx, weight);
    return saved_object<GroupMatmuls>(ctx, "matmuls")->product(input, weight, ends, added);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const auto matmuls = saved_object<GroupMatmuls>(ctx, "matmuls");
    const OperatorScope scope(OperatorKind::matmul, matmuls->names().recompute);
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    return matmuls->product(saved_or_recomputed(ctx, "input", saved[0]), saved[1], saved[2], saved[3]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto matmuls = saved_object<GroupMatmuls>(ctx, "matmuls");
    const OperatorScope scope(OperatorKind::matmul, matmuls->names().backward);
    refuse_double_backward(matmuls->names().op);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor& ends = saved[2];
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (ctx->needs_input_grad(0)) {
      grad_input = matmuls->input_gradient(grad, weight, ends);
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
      grad_weight = weight_gradient(
          ctx, weight, [grad, input, ends, matmuls] { return matmuls->weight_gradient(grad, input, ends); });
    }
    const at::Tensor grad_bias =
        saved[3].defined() && ctx->needs_input_grad(3) ? bias_gradient_of_groups(grad, ends) : at::Tensor();
    return {grad_input, grad_weight, at::Tensor(), grad_bias, at::Tensor()};
  }
};

bool differentiates(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return will_differentiate(input, weight) || (bias.defined() && will_differentiate(bias));
}
}  // namespace

at::Tensor grouped_linear_by(
    const c10::intrusive_ptr<GroupMatmuls>& matmuls,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias) {
  const at::Tensor read = cuda::multiplies_groups(input) || ends.is_meta() ? ends : ends.cpu();
  if (!differentiates(input, weight, bias)) {
    return matmuls->product(input, weight, read, bias);
  }
  const std::optional<at::Tensor> added = bias.defined() ? std::optional(bias) : std::nullopt;
  return recomputable_matmul<GroupedLinear>(GroupedLinear::apply(input, weight, read, added, Holder(matmuls)));
}

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
  const bool in_halves = weight.requires_grad() && WeightGradients::current() != nullptr;
  const bool own_backward = in_halves || (RecomputeMatmuls::on() && differentiates(input, weight, bias));
  if (!input.is_cpu() && !runs_on_meta(input) && !cuda::multiplies_groups(input) && !own_backward) {
    return grouped_linear_reference(input, weight, ends, bias);
  }
  return grouped_linear_by(c10::make_intrusive<GroupMatmuls>(), input, weight, ends, bias);
}

}  // namespace lehr::ops
