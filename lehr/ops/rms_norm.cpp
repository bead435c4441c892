// RMSNorm, alone and fused with the residual addition: checks, dispatch and the autograd function.
#include "lehr/ops/rms_norm.h"

#include "lehr/base/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/reference.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

cpu::Added added_to(const at::Tensor& x, const at::Tensor& branch) {
  return branch.defined() ? cpu::Added{branch.contiguous(), at::empty_like(x)} : cpu::Added{};
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  // Returns the normalized rows and, if `with_sum`, the normalized sum, which is x itself if there is no branch.
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& branch,
      double eps,
      NormWeight kind,
      bool with_sum) {
    const cpu::Added added = added_to(x, branch.value_or(at::Tensor()));
    auto [normed, inverse_rms] = dispatch::rms_norm_forward(x, weight, eps, kind, true, added);
    ctx->save_for_backward({branch ? added.sum : save_or_recompute(ctx, "x", x), weight, inverse_rms});
    ctx->saved_data["kind"] = static_cast<int64_t>(kind);
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["adds"] = branch.has_value();
    ctx->set_materialize_grads(false);
    if (!with_sum) {
      return {normed};
    }
    const at::Tensor& sum = branch ? added.sum : x;
    if (!x.requires_grad() && !(branch && branch->requires_grad())) {
      ctx->mark_non_differentiable({sum});
    }
    return {normed, sum};
  }

  // Recomputes the normalized rows in backward.
  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm_again");
    const auto saved = ctx->get_saved_variables();
    const auto kind = static_cast<NormWeight>(ctx->saved_data["kind"].toInt());
    return std::get<0>(dispatch::rms_norm_forward(
        saved_or_recomputed(ctx, "x", saved[0]), saved[1], ctx->saved_data["eps"].toDouble(), kind, false));
  }

  // A gradient is undefined if its output was not used.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm_backward");
    refuse_double_backward("rms_norm");
    const bool adds = ctx->saved_data["adds"].toBool();
    at::Tensor dsum = grads.size() > 1 ? grads[1] : at::Tensor();
    at::Tensor dweight;
    if (grads[0].defined()) {
      const auto saved = ctx->get_saved_variables();
      std::tie(dsum, dweight) = dispatch::rms_norm_backward(
          grads[0].contiguous(),
          saved_or_recomputed(ctx, "x", saved[0]),
          saved[1],
          saved[2],
          static_cast<NormWeight>(ctx->saved_data["kind"].toInt()),
          cpu::GradMask{
              .x = ctx->needs_input_grad(0) || (adds && ctx->needs_input_grad(2)), .weight = ctx->needs_input_grad(1)},
          dsum.defined() ? dsum.contiguous() : dsum);
    }
    return {dsum, dweight, adds ? dsum : at::Tensor(), {}, {}, {}};
  }
};

void check(const char* name, const at::Tensor& x, const at::Tensor& weight) {
  require(
      weight.dim() == 1 && x.dim() > 0 && x.size(-1) == weight.size(0),
      "{}: expected a weight of the input's last dimension, found input {} and weight {}",
      name,
      shape_of(x),
      shape_of(weight));
  require(
      x.scalar_type() == weight.scalar_type() && x.is_floating_point(),
      "{}: expected one floating type for input and weight, found {} and {}",
      name,
      c10::toString(x.scalar_type()),
      c10::toString(weight.scalar_type()));
}
}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind) {
  const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm");
  check("rms_norm", x, weight);
  if (!dispatch::supports_rows(x)) {
    return reference::rms_norm(x, weight, eps, kind);
  }
  if (will_differentiate(x, weight)) {
    const auto outputs =
        RmsNormFunction::apply(x.contiguous(), weight.contiguous(), std::optional<at::Tensor>(), eps, kind, false);
    return recomputable<RmsNormFunction>(outputs[0], RmsNormFunction::recompute);
  }
  return std::get<0>(dispatch::rms_norm_forward(x.contiguous(), weight.contiguous(), eps, kind, false));
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states, const at::Tensor& branch, const at::Tensor& weight, double eps, NormWeight kind) {
  const OperatorScope scope(OperatorKind::norm, "lehr::add_rms_norm");
  check("add_rms_norm", hidden_states, weight);
  if (branch.defined()) {
    require(
        branch.sizes() == hidden_states.sizes() && branch.scalar_type() == hidden_states.scalar_type(),
        "add_rms_norm: expected a branch of the shape and type of the hidden states, {} {}, found {} {}",
        shape_of(hidden_states),
        c10::toString(hidden_states.scalar_type()),
        shape_of(branch),
        c10::toString(branch.scalar_type()));
  }
  if (!dispatch::supports_rows(hidden_states)) {
    return reference::add_rms_norm(hidden_states, branch, weight, eps, kind);
  }
  const at::Tensor x = hidden_states.contiguous();
  if (will_differentiate(hidden_states, branch, weight)) {
    const auto outputs = RmsNormFunction::apply(
        x, weight.contiguous(), branch.defined() ? std::optional(branch) : std::nullopt, eps, kind, true);
    return {outputs[1], recomputable<RmsNormFunction>(outputs[0], RmsNormFunction::recompute)};
  }
  const cpu::Added added = added_to(x, branch);
  const at::Tensor normed = std::get<0>(dispatch::rms_norm_forward(x, weight.contiguous(), eps, kind, false, added));
  return {branch.defined() ? added.sum : hidden_states, normed};
}

}  // namespace lehr::ops
