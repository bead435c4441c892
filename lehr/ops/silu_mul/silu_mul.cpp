// SwiGLU's gate: checks, the autograd function, and the choice of CPU, GPU or definition.
#include "lehr/ops/silu_mul/silu_mul.h"

#include <ATen/ops/empty_like.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/silu_mul/kernels.h"

namespace lehr::ops {

namespace {
using cpu::elements;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 8192;

at::Tensor forward_of(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor y = at::empty_like(gate);
  report_pointwise({gate, up, y});
  if (cuda::supports(gate)) {
    cuda::check_devices("silu_mul", {gate, up});
    cuda::run<SiluMulLaunches>("silu_mul", gate, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.forward(elements<T>(gate), elements<T>(up), elements<T>(y), gate.numel());
    });
    return y;
  }
  cpu::run<SiluMulKernels>(gate, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    cpu::run_kernel(gate, 0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels.forward(elements<T>(gate), elements<T>(up), elements<T>(y), first, last);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> backward_of(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, bool want_gate, bool want_up) {
  const at::Tensor dgate = want_gate ? at::empty_like(gate) : at::Tensor();
  const at::Tensor dup = want_up ? at::empty_like(up) : at::Tensor();
  report_pointwise({dy, gate, up, dgate, dup});
  if (cuda::supports(gate)) {
    cuda::run<SiluMulLaunches>("silu_mul_backward", gate, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.backward(
          elements<T>(dy), elements<T>(gate), elements<T>(up), elements<T>(dgate), elements<T>(dup), gate.numel());
    });
    return {dgate, dup};
  }
  cpu::run<SiluMulKernels>(gate, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    cpu::run_kernel(gate, 0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels.backward(
          elements<T>(dy), elements<T>(gate), elements<T>(up), elements<T>(dgate), elements<T>(dup), first, last);
    });
  });
  return {dgate, dup};
}

struct SiluMulFunction : AutogradFunction<SiluMulFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({save_or_recompute(ctx, "gate", gate), save_or_recompute(ctx, "up", up)});
    return forward_of(gate, up);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::activation, "lehr::silu_mul_again");
    const auto saved = ctx->get_saved_variables();
    return forward_of(saved_or_recomputed(ctx, "gate", saved[0]), saved_or_recomputed(ctx, "up", saved[1]));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::activation, "lehr::silu_mul_backward");
    refuse_double_backward("silu_mul");
    const auto saved = ctx->get_saved_variables();
    auto [dgate, dup] = backward_of(
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
  if (!supports(gate)) {
    return reference::silu_mul(gate, up);
  }
  if (will_differentiate(gate, up)) {
    return recomputable(SiluMulFunction::apply(gate.contiguous(), up.contiguous()), SiluMulFunction::recompute);
  }
  return forward_of(gate.contiguous(), up.contiguous());
}

}  // namespace lehr::ops
