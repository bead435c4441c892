#include "lehr/ops/grouped_linear/grouped_weight.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "lehr/base/autograd_function.h"
#include "lehr/base/error.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
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

struct Operands {
  int64_t first;
  at::Tensor grad, input, ends;
  c10::intrusive_ptr<GroupMatmuls> matmuls;
};

// What backward of the parts hands to the node of the weight.
struct Handed : torch::CustomClassHolder {
  std::mutex mutex;
  std::vector<Operands> parts;
};

at::Tensor gradient_of(const std::vector<Operands>& parts, int64_t groups) {
  std::vector<at::Tensor> gradients;
  int64_t covered = 0;
  for (const Operands& part : parts) {
    invariant(part.first == covered, "grouped weight: no part has group {} of {}", covered, groups);
    covered += part.ends.size(0);
    gradients.push_back(part.matmuls->weight_gradient(part.grad, part.input, part.ends));
  }
  invariant(covered == groups, "grouped weight: the parts have {} of {} groups", covered, groups);
  return gradients.size() == 1 ? gradients.front() : at::cat(gradients);
}

// The node of the weight: its backward runs when all parts have handed over their operands.
struct Weight : AutogradFunction<Weight> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const Holder& handed) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["handed"] = c10::IValue::make_capsule(handed);
    ctx->save_for_backward({weight});
    note_weight_gradients(ctx, weight);
    return weight.view_as(weight);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& /*grads*/) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_weight_backward");
    refuse_double_backward("grouped_weight");
    std::vector<Operands> parts = std::exchange(saved_object<Handed>(ctx, "handed")->parts, {});
    std::sort(parts.begin(), parts.end(), [](const Operands& a, const Operands& b) { return a.first < b.first; });
    const at::Tensor weight = ctx->get_saved_variables().front();
    const int64_t groups = weight.size(0);
    return {
        weight_gradient(ctx, weight, [parts = std::move(parts), groups] { return gradient_of(parts, groups); }), {}};
  }
};

struct Product : AutogradFunction<Product> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const at::Tensor& weight,
      const at::Tensor& ends,
      const std::optional<at::Tensor>& bias,
      int64_t first,
      const Holder& handed,
      const Holder& matmuls) {
    const at::Tensor added = bias.value_or(at::Tensor());
    ctx->save_for_backward({save_operand(ctx, "input", input, weight), weight, ends, added});
    ctx->saved_data["first"] = first;
    ctx->saved_data["handed"] = c10::IValue::make_capsule(handed);
    ctx->saved_data["matmuls"] = c10::IValue::make_capsule(matmuls);
    return saved_object<GroupMatmuls>(ctx, "matmuls")
        ->product(input, weight.narrow(0, first, ends.size(0)), ends, added);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_weight_product_again");
    const Recomputed counted;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor weight = saved[1].narrow(0, ctx->saved_data["first"].toInt(), saved[2].size(0));
    const at::Tensor input = saved_or_recomputed(ctx, "input", saved[0]);
    return saved_object<GroupMatmuls>(ctx, "matmuls")->product(input, weight, saved[2], saved[3]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_weight_product_backward");
    refuse_double_backward("grouped_weight");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& ends = saved[2];
    const int64_t first = ctx->saved_data["first"].toInt();
    const at::Tensor grad = grads[0].contiguous();
    const auto matmuls = saved_object<GroupMatmuls>(ctx, "matmuls");
    at::Tensor grad_input;
    if (ctx->needs_input_grad(0)) {
      grad_input = matmuls->input_gradient(grad, saved[1].detach().narrow(0, first, ends.size(0)), ends);
    }
    if (ctx->needs_input_grad(1)) {
      const auto handed = saved_object<Handed>(ctx, "handed");
      Operands operands{first, grad, saved_or_recomputed(ctx, "input", saved[0]), ends, matmuls};
      const std::lock_guard lock(handed->mutex);
      handed->parts.push_back(std::move(operands));
    }
    const at::Tensor grad_bias =
        saved[3].defined() && ctx->needs_input_grad(3) ? bias_gradient_of_groups(grad, ends) : at::Tensor();
    return {grad_input, at::Tensor(), at::Tensor(), grad_bias, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};
}  // namespace

GroupedWeight::GroupedWeight(const at::Tensor& weight) : operands_(c10::make_intrusive<Handed>()), weight_(weight) {
  if (will_differentiate(weight)) {
    weight_ = Weight::apply(weight, operands_);
  }
}

at::Tensor GroupedWeight::product(
    const at::Tensor& input,
    const at::Tensor& ends,
    int64_t first,
    const at::Tensor& bias,
    c10::intrusive_ptr<GroupMatmuls> matmuls) const {
  const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_weight_product");
  const at::Tensor weight = weight_.detach().narrow(0, first, ends.size(0));
  check_grouped_linear("grouped_weight", input, weight, ends, bias);
  const at::Tensor read = cuda::multiplies_groups(input) || ends.is_meta() ? ends : ends.cpu();
  if (!matmuls) {
    matmuls = c10::make_intrusive<GroupMatmuls>();
  }
  if (!will_differentiate(input, weight_) && !(bias.defined() && will_differentiate(bias))) {
    return matmuls->product(input, weight, read, bias);
  }
  const std::optional<at::Tensor> added = bias.defined() ? std::optional(bias) : std::nullopt;
  return recomputable_matmul<Product>(Product::apply(input, weight_, read, added, first, operands_, Holder(matmuls)));
}

}  // namespace lehr::ops
