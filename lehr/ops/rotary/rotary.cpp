// Rotary embedding, alone and fused with QK-norm: checks, dispatch and the autograd functions.
#include "lehr/ops/rotary/rotary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/rms_norm/rows.h"
#include "lehr/ops/rotary/kernels.h"

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

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns whether rotating `rotated` elements of each head of x is supported; if `normalized`, fused with a norm.
bool supports_rotation(const at::Tensor& x, int64_t rotated, bool normalized) {
  const int64_t size = x.size(-1);
  if (!cuda::supports(x)) {
    return cpu::supports(x) && (!normalized || size <= kMaxFusedHeadSize);
  }
  return (!normalized || size <= cuda::kMostInHead) &&
         cuda::with_type(x, [&](auto element) { return cuda::fits_rotation<decltype(element)>(size, rotated); });
}

CosSin operands(const CosSin& angles) {
  return {operand(angles.cos), operand(angles.sin), angles.interleaved};
}

// Rotates x (B, T, H, D). With `backward`, rotates by the negative angles, which is the transposed map.
at::Tensor rotated(const at::Tensor& given, const CosSin& given_angles, bool backward) {
  const at::Tensor x = operand(given), y = at::empty_like(x);
  const CosSin angles = operands(given_angles);
  report_pointwise({x, angles.cos, angles.sin, y});
  const auto call = [&](auto element) {
    using T = decltype(element);
    return RotaryCall<T>{
        .x = cpu::elements<T>(x),
        .y = cpu::elements<T>(y),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2),
        .size = x.size(3),
        .backward = backward};
  };
  if (cuda::supports(x)) {
    cuda::check_devices("apply_rotary", {x, angles.cos, angles.sin});
    cuda::run<cuda::RotaryLaunches>("apply_rotary", x, [&](auto element, const auto& kernels) {
      return kernels.rotary(call(element), x.size(0) * x.size(1));
    });
  } else if (x.numel() > 0) {
    cpu::run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
      const auto one = call(element);
      cpu::run_kernel(
          x, 0, x.size(0) * x.size(1), cpu::grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
            kernels.rotary(one, first, last);
          });
    });
  }
  return y;
}

std::tuple<at::Tensor, at::Tensor> norm_rotated(
    const at::Tensor& given,
    const at::Tensor& given_weight,
    double eps,
    NormWeight kind,
    const CosSin& given_angles,
    bool keep) {
  const at::Tensor x = operand(given), weight = operand(given_weight);
  const CosSin angles = operands(given_angles);
  const at::Tensor y = at::empty_like(x), inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, weight, angles.cos, angles.sin, y, inverse_rms});
  const auto call = [&](auto element) {
    using T = decltype(element);
    return NormRotaryForward<T>{
        .norm = forward_call<T>(x, weight, eps, kind == NormWeight::zero_centered, y, inverse_rms),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2)};
  };
  if (cuda::supports(x)) {
    cuda::check_devices("qk_norm_rotary", {x, weight, angles.cos, angles.sin});
    cuda::run<cuda::RotaryLaunches>("qk_norm_rotary", x, [&](auto element, const auto& kernels) {
      return kernels.norm_forward(call(element), x.size(0) * x.size(1));
    });
  } else if (x.numel() > 0) {
    cpu::run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
      const auto one = call(element);
      cpu::run_kernel(
          x, 0, x.size(0) * x.size(1), cpu::grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
            kernels.norm_forward(one, first, last);
          });
    });
  }
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> norm_rotated_backward(
    const at::Tensor& given_dy,
    const at::Tensor& given,
    const at::Tensor& given_weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const CosSin& given_angles,
    cpu::GradMask wanted) {
  if (given.numel() == 0) {
    return no_rows(given, given_weight, wanted);
  }
  const at::Tensor dy = operand(given_dy), x = operand(given), weight = operand(given_weight);
  const CosSin angles = operands(given_angles);
  const at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, angles.cos, angles.sin, dx});
  const int64_t heads = x.size(2), tokens = x.size(0) * x.size(1);
  const auto call = [&](auto element) {
    using T = decltype(element);
    return NormRotaryBackward<T>{
        .norm = backward_call<T>(dy, x, weight, inverse_rms, kind == NormWeight::zero_centered, dx),
        .angles = kernel_angles<T>(angles),
        .heads = heads};
  };
  if (cuda::supports(x)) {
    cuda::run<cuda::RotaryLaunches>("qk_norm_rotary_backward", x, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      const cuda::WeightGradientBuffers<T> buffers(
          weight, inverse_rms.numel(), cuda::head_threads<T>(x.size(3)), wanted.weight);
      dweight = buffers.sum();
      return kernels.norm_backward(call(element), buffers.call(), tokens);
    });
    return {dx, dweight};
  }
  cpu::run<RotaryKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto one = call(element);
    const auto backward = [&](Wide<T>* sums, int64_t first, int64_t last) {
      kernels.norm_backward(one, sums, first, last);
    };
    const int64_t tokens_per_block = std::max<int64_t>(1, kRowsABlock / heads);
    dweight = over_blocks<T>(weight, tokens, tokens_per_block, heads * x.size(3), wanted.weight, backward);
  });
  return {dx, dweight};
}

// Rotation of x (B, T, H, D), which is q or k. One call each instead of one for both, so that a frozen k costs nothing.
struct RotaryFunction : AutogradFunction<RotaryFunction> {
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

struct NormRotaryFunction : AutogradFunction<NormRotaryFunction> {
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
      q.dim() == 4 && (!k.defined() ||
                       (k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3))),
      "{}: expected q (B, T, Hq, D) and k (B, T, Hkv, D), found {} and {}",
      name,
      shape_of(q),
      k.defined() ? shape_of(k) : "none");
  const auto type_of_k = k.defined() ? k.scalar_type() : q.scalar_type();
  require(
      q.scalar_type() == type_of_k && q.is_floating_point(),
      "{}: expected q and k of one floating type, found {} and {}",
      name,
      c10::toString(q.scalar_type()),
      c10::toString(type_of_k));
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
  return can_recompute(dense) ? recomputable(y, RotaryFunction::recompute) : y;
}

at::Tensor norm_rotate(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const CosSin& angles) {
  if (will_differentiate(x, weight)) {
    return recomputable(
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
  return {rotate(q, angles), k.defined() ? rotate(k, angles) : k};
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
  for (const at::Tensor& weight : {q_weight, k.defined() ? k_weight : q_weight}) {
    require(
        weight.dim() == 1 && weight.size(0) == q.size(3) && weight.scalar_type() == q.scalar_type(),
        "qk_norm_rotary: expected weights of {} {} elements, found {} {}",
        q.size(3),
        c10::toString(q.scalar_type()),
        c10::toString(weight.scalar_type()),
        shape_of(weight));
  }
  if (!supports_rotation(q, cos.size(-1), true)) {
    const at::Tensor normed_k = k.defined() ? rms_norm(k, k_weight, eps, kind) : k;
    return apply_rotary(rms_norm(q, q_weight, eps, kind), normed_k, cos, sin, style);
  }
  const CosSin angles = angles_for(cos, sin, q.scalar_type(), style);
  return {norm_rotate(q, q_weight, eps, kind, angles), k.defined() ? norm_rotate(k, k_weight, eps, kind, angles) : k};
}

}  // namespace lehr::ops
