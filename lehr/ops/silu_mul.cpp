// SwiGLU's gate: checks, dispatch and the autograd function.
#include "lehr/ops/silu_mul.h"

#include "lehr/base/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/dispatch.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/reference.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluMulFunction : torch::autograd::Function<SiluMulFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({save_or_recompute(ctx, "gate", gate), save_or_recompute(ctx, "up", up)});
    return dispatch::silu_mul_forward(gate, up);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::activation, "lehr::silu_mul_again");
    const auto saved = ctx->get_saved_variables();
    return dispatch::silu_mul_forward(
        saved_or_recomputed(ctx, "gate", saved[0]), saved_or_recomputed(ctx, "up", saved[1]));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::activation, "lehr::silu_mul_backward");
    refuse_double_backward("silu_mul");
    const auto saved = ctx->get_saved_variables();
    auto [dgate, dup] = dispatch::silu_mul_backward(
        grads[0].contiguous(),
        saved_or_recomputed(ctx, "gate", saved[0]),
        saved_or_recomputed(ctx, "up", saved[1]),
        ctx->needs_input_grad(0),
        ctx->needs_input_grad(1));
    return {dgate, dup};
  }
};
}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  const OperatorScope scope(OperatorKind::activation, "lehr::silu_mul");
  require(
      gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.is_floating_point(),
      "silu_mul: expected gate and up of one shape and floating type, found {} {} and {} {}",
      c10::toString(gate.scalar_type()),
      shape_of(gate),
      c10::toString(up.scalar_type()),
      shape_of(up));
  if (!dispatch::supports(gate)) {
    return reference::silu_mul(gate, up);
  }
  if (will_differentiate(gate, up)) {
    return recomputable<SiluMulFunction>(
        SiluMulFunction::apply(gate.contiguous(), up.contiguous()), SiluMulFunction::recompute);
  }
  return dispatch::silu_mul_forward(gate.contiguous(), up.contiguous());
}

}  // namespace lehr::ops
