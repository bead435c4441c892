// gpt-oss's gate: checks, the autograd function, and the choice of CPU, GPU or definition.
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/clamped_swiglu/kernels.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"

namespace lehr::ops {

namespace {
using cpu::elements;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 8192;

at::Tensor forward_of(const at::Tensor& gate_up, const SwiGLUClamp& clamp) {
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() /= 2;
  const at::Tensor y = at::empty(shape, gate_up.options());
  report_pointwise({gate_up, y});
  if (cuda::supports(gate_up)) {
    cuda::run<ClampedSwiGLULaunches>("clamped_swiglu", gate_up, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.forward(elements<T>(gate_up), elements<T>(y), clamp.limit, clamp.alpha, y.numel());
    });
    return y;
  }
  cpu::run<ClampedSwiGLUKernels>(gate_up, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    cpu::run_kernel(gate_up, 0, y.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels.forward(elements<T>(gate_up), elements<T>(y), clamp.limit, clamp.alpha, first, last);
    });
  });
  return y;
}

at::Tensor backward_of(const at::Tensor& dy, const at::Tensor& gate_up, const SwiGLUClamp& clamp) {
  const at::Tensor gradient = at::empty_like(gate_up);
  report_pointwise({dy, gate_up, gradient});
  if (cuda::supports(gate_up)) {
    cuda::run<ClampedSwiGLULaunches>("clamped_swiglu_backward", gate_up, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.backward(
          elements<T>(dy), elements<T>(gate_up), elements<T>(gradient), clamp.limit, clamp.alpha, dy.numel());
    });
    return gradient;
  }
  cpu::run<ClampedSwiGLUKernels>(gate_up, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    cpu::run_kernel(gate_up, 0, dy.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernels.backward(
          elements<T>(dy), elements<T>(gate_up), elements<T>(gradient), clamp.limit, clamp.alpha, first, last);
    });
  });
  return gradient;
}

struct ClampedSwiGLUFunction : AutogradFunction<ClampedSwiGLUFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, double limit, double alpha) {
    ctx->save_for_backward({save_or_recompute(ctx, "gate_up", gate_up)});
    ctx->saved_data["limit"] = limit;
    ctx->saved_data["alpha"] = alpha;
    return forward_of(gate_up, {.limit = limit, .alpha = alpha});
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::activation, "lehr::clamped_swiglu_again");
    return forward_of(input_of(ctx), clamp_of(ctx));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::activation, "lehr::clamped_swiglu_backward");
    refuse_double_backward("clamped_swiglu");
    return {backward_of(grads[0].contiguous(), input_of(ctx), clamp_of(ctx)), at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor input_of(AutogradContext* ctx) {
    return saved_or_recomputed(ctx, "gate_up", ctx->get_saved_variables()[0]);
  }
  static SwiGLUClamp clamp_of(AutogradContext* ctx) {
    return {.limit = ctx->saved_data["limit"].toDouble(), .alpha = ctx->saved_data["alpha"].toDouble()};
  }
};
}  // namespace

at::Tensor clamped_swiglu(const at::Tensor& gate_up, const SwiGLUClamp& clamp) {
  const OperatorScope scope(OperatorKind::activation, "lehr::clamped_swiglu");
  require(
      gate_up.is_floating_point() && gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0,
      "clamped_swiglu: expected pairs of a floating type in the last dimension, found {} {}",
      c10::toString(gate_up.scalar_type()),
      shape_of(gate_up));
  if (!supports(gate_up)) {
    return reference::clamped_swiglu(gate_up, clamp);
  }
  if (will_differentiate(gate_up, gate_up)) {
    return recomputable(
        ClampedSwiGLUFunction::apply(gate_up.contiguous(), clamp.limit, clamp.alpha), ClampedSwiGLUFunction::recompute);
  }
  return forward_of(gate_up.contiguous(), clamp);
}

}  // namespace lehr::ops
