// Rotary embedding, alone and fused with QK-norm: checks, dispatch and the autograd functions.
#include "lehr/ops/rotary/rotary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/base/operation_meter.h"
#include "lehr/base/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/rms_norm/rows.h"
#include "lehr/ops/rotary/kernels.h"
#include "lehr/ops/rotary/qk_norm_rotary.h"

namespace lehr::ops {

namespace {
// cos and sin in the layout of the kernels: (B*T, R), or (T, R) if all sequences share them.
struct CosSin {
  at::Tensor cos;
  at::Tensor sin;
  bool interleaved;
};

CosSin angles_for(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType type, RotaryStyle style) {
  const auto flat = [&](const at::Tensor& t) {
    return t.detach().to(cpu::wide_type(type)).reshape({-1, t.size(-1)}).contiguous();
  };
  return {flat(cos), flat(sin), style == RotaryStyle::interleaved};
}

template <class T>
RotaryAngles<T> kernel_angles(const CosSin& angles) {
  return {
      .cos = cpu::elements<Wide<T>>(angles.cos),
      .sin = cpu::elements<Wide<T>>(angles.sin),
      .angle_rows = angles.cos.size(0),
      .rotated = angles.cos.size(1),
      .interleaved = angles.interleaved};
}
}  // namespace

namespace cpu {
namespace {
// Rotates x (B, T, H, D). With `backward`, rotates by the negative angles, which is the transposed map.
at::Tensor rotary(const at::Tensor& x, const CosSin& angles, bool backward) {
  at::Tensor y = at::empty_like(x);
  report_pointwise({x, angles.cos, angles.sin, y});
  if (x.numel() == 0) {
    return y;
  }
  run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const RotaryCall<T> call{
        .x = elements<T>(x),
        .y = elements<T>(y),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2),
        .size = x.size(3),
        .backward = backward};
    run_kernel(x, 0, x.size(0) * x.size(1), grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
      kernels.rotary(call, first, last);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const CosSin& angles, bool keep) {
  at::Tensor y = at::empty_like(x);
  at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, weight, angles.cos, angles.sin, y, inverse_rms});
  if (x.numel() == 0) {
    return {y, inverse_rms};
  }
  run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const NormRotaryForward<T> call{
        .norm = forward_call<T>(x, weight, eps, kind, y, inverse_rms),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2)};
    run_kernel(x, 0, x.size(0) * x.size(1), grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
      kernels.norm_forward(call, first, last);
    });
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const CosSin& angles,
    GradMask wanted) {
  at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, angles.cos, angles.sin, dx});
  const int64_t heads = x.size(2);
  const int64_t tokens = x.numel() == 0 ? 0 : x.size(0) * x.size(1);
  const int64_t tokens_per_block = std::max<int64_t>(1, kRowsABlock / std::max<int64_t>(1, heads));
  run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const NormRotaryBackward<T> call{
        .norm = backward_call<T>(dy, x, weight, inverse_rms, kind, dx),
        .angles = kernel_angles<T>(angles),
        .heads = heads};
    dweight = over_blocks<T>(
        weight,
        tokens,
        tokens_per_block,
        heads * x.size(3),
        wanted.weight,
        [&](Wide<T>* sums, int64_t first, int64_t last) { kernels.norm_backward(call, sums, first, last); });
  });
  return {dx, dweight};
}
}  // namespace
}  // namespace cpu

namespace cuda {
namespace {
using cpu::elements;

at::Tensor rotary(const at::Tensor& unaligned, const CosSin& angles, bool backward) {
  check_devices("apply_rotary", {unaligned, angles.cos, angles.sin});
  const at::Tensor x = aligned_for_kernels(unaligned);
  const CosSin aligned_angles{aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor y = at::empty_like(x);
  report_pointwise({x, angles.cos, angles.sin, y});
  run<RotaryLaunches>("apply_rotary", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const RotaryCall<T> call{
        .x = elements<T>(x),
        .y = elements<T>(y),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2),
        .size = x.size(3),
        .backward = backward};
    return kernels.rotary(call, x.size(0) * x.size(1));
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    double eps,
    NormWeight kind,
    const CosSin& angles,
    bool keep) {
  check_devices("qk_norm_rotary", {unaligned, unaligned_weight, angles.cos, angles.sin});
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const CosSin aligned_angles{aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor y = at::empty_like(x);
  const at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, weight, angles.cos, angles.sin, y, inverse_rms});
  run<RotaryLaunches>("qk_norm_rotary", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const NormRotaryForward<T> call{
        .norm = forward_call<T>(x, weight, eps, kind, y, inverse_rms),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2)};
    return kernels.norm_forward(call, x.size(0) * x.size(1));
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& unaligned_dy,
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const CosSin& angles,
    cpu::GradMask wanted) {
  if (unaligned.numel() == 0) {
    return no_rows(unaligned, unaligned_weight, wanted);
  }
  const at::Tensor dy = aligned_for_kernels(unaligned_dy);
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const CosSin aligned_angles{aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, angles.cos, angles.sin, dx});
  run<RotaryLaunches>("qk_norm_rotary_backward", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const WeightGradientBuffers<T> buffers(weight, inverse_rms.numel(), head_threads<T>(x.size(3)), wanted.weight);
    dweight = buffers.sum();
    const NormRotaryBackward<T> call{
        .norm = backward_call<T>(dy, x, weight, inverse_rms, kind, dx),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2)};
    return kernels.norm_backward(call, buffers.call(), x.size(0) * x.size(1));
  });
  return {dx, dweight};
}
}  // namespace
}  // namespace cuda

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether the rotation of `rotated` elements of each head of x is supported; if `normalized`, fused with a norm.
bool supports_rotation(const at::Tensor& x, int64_t rotated, bool normalized) {
  const int64_t size = x.size(-1);
  if (!cuda::supports(x)) {
    return cpu::supports(x) && (!normalized || size <= kMaxFusedHeadSize);
  }
  return (!normalized || size <= cuda::kMostInHead) &&
         cuda::with_type(x, [&](auto element) { return cuda::fits_rotation<decltype(element)>(size, rotated); });
}

template <class... More>
auto rotated(const at::Tensor& x, const More&... more) {
  return cuda::supports(x) ? cuda::rotary(x, more...) : cpu::rotary(x, more...);
}
template <class... More>
auto norm_rotated(const at::Tensor& x, const More&... more) {
  return cuda::supports(x) ? cuda::norm_rotary_forward(x, more...) : cpu::norm_rotary_forward(x, more...);
}
template <class... More>
auto norm_rotated_backward(const at::Tensor& dy, const More&... more) {
  return cuda::supports(dy) ? cuda::norm_rotary_backward(dy, more...) : cpu::norm_rotary_backward(dy, more...);
}

// Rotation of x (B, T, H, D), which is q or k. One call each instead of one for both, so that a frozen k costs nothing.
struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const CosSin& angles) {
    ctx->save_for_backward({angles.cos, angles.sin});
    ctx->saved_data["interleaved"] = angles.interleaved;
    save_or_recompute(ctx, "x", x);  // records x's node for recompute(), if x is recomputable; backward does not read x
    return rotated(x, angles, false);
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary_again");
    const auto saved = ctx->get_saved_variables();
    const CosSin angles{saved[0], saved[1], ctx->saved_data["interleaved"].toBool()};
    return rotated(saved_or_recomputed(ctx, "x", {}), angles, false);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary_backward");
    refuse_double_backward("apply_rotary");
    const auto saved = ctx->get_saved_variables();
    const CosSin angles{saved[0], saved[1], ctx->saved_data["interleaved"].toBool()};
    return {rotated(grads[0].contiguous(), angles, true), {}};
  }
};

struct NormRotaryFunction : torch::autograd::Function<NormRotaryFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      double eps,
      NormWeight kind,
      const CosSin& angles) {
    auto [y, inverse_rms] = norm_rotated(x, weight, eps, kind, angles, true);
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
    const CosSin angles{saved[3], saved[4], ctx->saved_data["interleaved"].toBool()};
    const double eps = ctx->saved_data["eps"].toDouble();
    return std::get<0>(norm_rotated(saved_or_recomputed(ctx, "x", saved[0]), saved[1], eps, kind, angles, false));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::norm, "lehr::qk_norm_rotary_backward");
    refuse_double_backward("qk_norm_rotary");
    const auto saved = ctx->get_saved_variables();
    const CosSin angles{saved[3], saved[4], ctx->saved_data["interleaved"].toBool()};
    auto [dx, dweight] = norm_rotated_backward(
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

at::Tensor rotate(const at::Tensor& x, const CosSin& angles) {
  if (!will_differentiate(x)) {
    return rotated(x.contiguous(), angles, false);
  }
  const at::Tensor dense = x.contiguous();
  const at::Tensor y = RotaryFunction::apply(dense, angles);
  return can_recompute(dense) ? recomputable<RotaryFunction>(y, RotaryFunction::recompute) : y;
}

at::Tensor norm_rotate(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const CosSin& angles) {
  if (will_differentiate(x, weight)) {
    return recomputable<NormRotaryFunction>(
        NormRotaryFunction::apply(x.contiguous(), weight.contiguous(), eps, kind, angles),
        NormRotaryFunction::recompute);
  }
  return std::get<0>(norm_rotated(x.contiguous(), weight.contiguous(), eps, kind, angles, false));
}
}  // namespace

std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  const OperatorScope scope(OperatorKind::rotary, "lehr::apply_rotary");
  check("apply_rotary", q, k, cos, sin);
  if (!supports_rotation(q, cos.size(-1), false)) {
    return reference::apply_rotary(q, k, cos, sin, style);
  }
  const CosSin angles = angles_for(cos, sin, q.scalar_type(), style);
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
  if (!supports_rotation(q, cos.size(-1), true)) {
    return apply_rotary(rms_norm(q, q_weight, eps, kind), rms_norm(k, k_weight, eps, kind), cos, sin, style);
  }
  const CosSin angles = angles_for(cos, sin, q.scalar_type(), style);
  return {norm_rotate(q, q_weight, eps, kind, angles), norm_rotate(k, k_weight, eps, kind, angles)};
}

}  // namespace lehr::ops
