// Rotary embedding, alone and fused with QK-norm: checks, dispatch and the autograd functions.
#include "lehr/ops/rotary.h"

#include "lehr/base/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/qk_norm_rotary.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/reference.h"
#include "lehr/ops/rms_norm.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rotation of x (B, T, H, D), which is q or k. One call each instead of one for both, so that a frozen k costs nothing.
struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const cpu::CosSin& angles) {
    ctx->save_for_backward({angles.cos, angles.sin});
    ctx->saved_data["interleaved"] = angles.interleaved;
    save_or_recompute(ctx, "x", x);  // records x's node for recompute(), if x is recomputable; backward does not read x
    return dispatch::rotary(x, angles, false);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary_again");
    const auto saved = ctx->get_saved_variables();
    const cpu::CosSin angles{saved[0], saved[1], ctx->saved_data["interleaved"].toBool()};
    return dispatch::rotary(saved_or_recomputed(ctx, "x", {}), angles, false);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary_backward");
    refuse_double_backward("apply_rotary");
    const auto saved = ctx->get_saved_variables();
    const cpu::CosSin angles{saved[0], saved[1], ctx->saved_data["interleaved"].toBool()};
    return {dispatch::rotary(grads[0].contiguous(), angles, true), {}};
  }
};

struct NormRotaryFunction : torch::autograd::Function<NormRotaryFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      double eps,
      NormWeight kind,
      const cpu::CosSin& angles) {
    auto [y, inverse_rms] = dispatch::norm_rotary_forward(x, weight, eps, kind, angles, true);
    ctx->saved_data["kind"] = static_cast<int64_t>(kind);
    ctx->saved_data["eps"] = eps;
    ctx->save_for_backward({save_or_recompute(ctx, "x", x), weight, inverse_rms, angles.cos, angles.sin});
    ctx->saved_data["interleaved"] = angles.interleaved;
    return y;
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::norm, "lehr::qk_norm_rotary_again");
    const auto saved = ctx->get_saved_variables();
    const auto kind = static_cast<NormWeight>(ctx->saved_data["kind"].toInt());
    const cpu::CosSin angles{saved[3], saved[4], ctx->saved_data["interleaved"].toBool()};
    const double eps = ctx->saved_data["eps"].toDouble();
    return std::get<0>(
        dispatch::norm_rotary_forward(saved_or_recomputed(ctx, "x", saved[0]), saved[1], eps, kind, angles, false));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::norm, "lehr::qk_norm_rotary_backward");
    refuse_double_backward("qk_norm_rotary");
    const auto saved = ctx->get_saved_variables();
    const cpu::CosSin angles{saved[3], saved[4], ctx->saved_data["interleaved"].toBool()};
    auto [dx, dweight] = dispatch::norm_rotary_backward(
        grads[0].contiguous(),
        saved_or_recomputed(ctx, "x", saved[0]),
        saved[1],
        saved[2],
        static_cast<NormWeight>(ctx->saved_data["kind"].toInt()),
        angles,
        cpu::GradMask{.x = ctx->needs_input_grad(0), .weight = ctx->needs_input_grad(1)});
    return {dx, dweight, {}, {}, {}};
  }
};

void check(const char* name, const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  require(
      q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
      "{}: expected q (B, T, Hq, D) and k (B, T, Hkv, D), found {} and {}",
      name,
      shape_of(q),
      shape_of(k));
  require(
      q.scalar_type() == k.scalar_type() && q.is_floating_point(),
      "{}: expected q and k of one floating type, found {} and {}",
      name,
      c10::toString(q.scalar_type()),
      c10::toString(k.scalar_type()));
  const int64_t rotated = cos.dim() > 0 ? cos.size(-1) : 0;
  const bool shape_fits = (cos.dim() == 2 || (cos.dim() == 3 && (cos.size(0) == 1 || cos.size(0) == q.size(0)))) &&
                          cos.size(-2) == q.size(1) && rotated % 2 == 0 && rotated <= q.size(3);
  require(
      shape_fits && cos.sizes() == sin.sizes(),
      "{}: expected cos and sin (B, T, R), (1, T, R) or (T, R) with even R <= D for q {}, found {} and {}",
      name,
      shape_of(q),
      shape_of(cos),
      shape_of(sin));
}

at::Tensor rotate(const at::Tensor& x, const cpu::CosSin& angles) {
  if (!will_differentiate(x)) {
    return dispatch::rotary(x.contiguous(), angles, false);
  }
  const at::Tensor dense = x.contiguous();
  const at::Tensor rotated = RotaryFunction::apply(dense, angles);
  return can_recompute(dense) ? recomputable<RotaryFunction>(rotated, RotaryFunction::recompute) : rotated;
}

at::Tensor norm_rotate(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const cpu::CosSin& angles) {
  if (will_differentiate(x, weight)) {
    return recomputable<NormRotaryFunction>(
        NormRotaryFunction::apply(x.contiguous(), weight.contiguous(), eps, kind, angles),
        NormRotaryFunction::recompute);
  }
  return std::get<0>(dispatch::norm_rotary_forward(x.contiguous(), weight.contiguous(), eps, kind, angles, false));
}
}  // namespace

std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary");
  check("apply_rotary", q, k, cos, sin);
  if (!dispatch::supports_rotation(q, cos.size(-1), false)) {
    return reference::apply_rotary(q, k, cos, sin, style);
  }
  const cpu::CosSin angles = cpu::angles_for(cos, sin, q.scalar_type(), style);
  return {rotate(q, angles), rotate(k, angles)};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rotary(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& q_weight,
    const at::Tensor& k_weight,
    double eps,
    const at::Tensor& cos,
    const at::Tensor& sin,
    RotaryStyle style,
    NormWeight kind) {
  const OperatorScope scope(OperatorKind::norm, "lehr::qk_norm_rotary");
  check("qk_norm_rotary", q, k, cos, sin);
  require(
      q_weight.dim() == 1 && k_weight.dim() == 1 && q_weight.size(0) == q.size(3) && k_weight.size(0) == k.size(3) &&
          q_weight.scalar_type() == q.scalar_type() && k_weight.scalar_type() == k.scalar_type(),
      "qk_norm_rotary: expected weights of {} {} elements, found {} {} and {} {}",
      q.size(3),
      c10::toString(q.scalar_type()),
      c10::toString(q_weight.scalar_type()),
      shape_of(q_weight),
      c10::toString(k_weight.scalar_type()),
      shape_of(k_weight));
  if (!dispatch::supports_rotation(q, cos.size(-1), true)) {
    return apply_rotary(rms_norm(q, q_weight, eps, kind), rms_norm(k, k_weight, eps, kind), cos, sin, style);
  }
  const cpu::CosSin angles = cpu::angles_for(cos, sin, q.scalar_type(), style);
  return {norm_rotate(q, q_weight, eps, kind, angles), norm_rotate(k, k_weight, eps, kind, angles)};
}

}  // namespace lehr::ops
