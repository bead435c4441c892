// RMS normalization: checks, dispatch and the autograd function.
#include "lehr/ops/rms_norm.h"

#include "lehr/base/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/fast.h"
#include "lehr/ops/reference.h"
#include "lehr/ops/remake.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind) {
    auto [y, inverse_rms] = fast::rms_norm_forward(x, weight, eps, kind, true);
    ctx->save_for_backward({keep(ctx, "x", x), weight, inverse_rms});
    ctx->saved_data["kind"] = static_cast<int64_t>(kind);
    ctx->saved_data["eps"] = eps;
    return y;
  }

  static at::Tensor again(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm_again");
    const auto saved = ctx->get_saved_variables();
    const auto kind = static_cast<NormWeight>(ctx->saved_data["kind"].toInt());
    return std::get<0>(
        fast::rms_norm_forward(kept(ctx, "x", saved[0]), saved[1], ctx->saved_data["eps"].toDouble(), kind, false));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm_backward");
    refuse_double_backward("rms_norm");
    const auto saved = ctx->get_saved_variables();
    auto [dx, dweight] = fast::rms_norm_backward(
        grads[0].contiguous(),
        kept(ctx, "x", saved[0]),
        saved[1],
        saved[2],
        static_cast<NormWeight>(ctx->saved_data["kind"].toInt()),
        cpu::Wanted{.x = ctx->needs_input_grad(0), .weight = ctx->needs_input_grad(1)});
    return {dx, dweight, {}, {}};
  }
};
}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind) {
  const OperatorScope scope(OperatorKind::norm, "lehr::rms_norm");
  require(
      weight.dim() == 1 && x.dim() > 0 && x.size(-1) == weight.size(0),
      "rms_norm: expected a weight of the input's last dimension, found input {} and weight {}",
      shape_of(x),
      shape_of(weight));
  require(
      x.scalar_type() == weight.scalar_type() && x.is_floating_point(),
      "rms_norm: expected one floating type for input and weight, found {} and {}",
      c10::toString(x.scalar_type()),
      c10::toString(weight.scalar_type()));
  if (!fast::supports_rows(x)) {
    return reference::rms_norm(x, weight, eps, kind);
  }
  if (will_differentiate(x, weight)) {
    return remade_by<RmsNormFunction>(
        RmsNormFunction::apply(x.contiguous(), weight.contiguous(), eps, kind), RmsNormFunction::again);
  }
  return std::get<0>(fast::rms_norm_forward(x.contiguous(), weight.contiguous(), eps, kind, false));
}

}  // namespace lehr::ops
