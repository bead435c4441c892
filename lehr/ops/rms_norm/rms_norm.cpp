// RMSNorm, alone and fused with the residual addition: checks, dispatch and the autograd function.
#include "lehr/ops/rms_norm/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/rms_norm/rows.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns whether norms of the rows of x are supported.
bool supports_rows(const at::Tensor& x) {
  return cuda::supports(x)
             ? cuda::with_type(x, [&](auto element) { return cuda::fits_row<decltype(element)>(x.size(-1)); })
             : cpu::supports(x);
}

// Returns y and, if `keep`, the inverse RMS of each row for backward.
std::tuple<at::Tensor, at::Tensor> forward_of(
    const at::Tensor& given,
    const at::Tensor& given_weight,
    double eps,
    NormWeight kind,
    bool keep,
    const Added& given_added = {}) {
  const at::Tensor x = operand(given), weight = operand(given_weight);
  const Added added{operand(given_added.branch), given_added.sum};
  const at::Tensor y = at::empty_like(x), inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, added.branch, added.sum, weight, y, inverse_rms});
  const int64_t size = x.size(-1);
  if (cuda::supports(x)) {
    cuda::check_devices("rms_norm", {x, weight, added.branch});
    cuda::run<cuda::RmsNormLaunches>("rms_norm", x, [&](auto element, const auto& kernels) {
      return kernels.forward(
          forward_call<decltype(element)>(x, weight, eps, kind == NormWeight::zero_centered, y, inverse_rms, added),
          x.numel() / size);
    });
  } else if (x.numel() > 0) {
    cpu::run<RmsNormKernels>(x, [&](auto element, const auto& kernels) {
      const auto call =
          forward_call<decltype(element)>(x, weight, eps, kind == NormWeight::zero_centered, y, inverse_rms, added);
      cpu::run_kernel(x, 0, x.numel() / size, cpu::grain_for(size), [&](int64_t first, int64_t last) {
        kernels.forward(call, first, last);
      });
    });
  }
  return {y, inverse_rms};
}

// Returns the gradients of x and weight. x is the tensor that was normalized, after a fused addition. Its gradient
// includes dsum, if that is defined.
std::tuple<at::Tensor, at::Tensor> backward_of(
    const at::Tensor& given_dy,
    const at::Tensor& given,
    const at::Tensor& given_weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    cpu::GradMask wanted,
    const at::Tensor& given_dsum) {
  if (given.numel() == 0) {
    return no_rows(given, given_weight, wanted);
  }
  const at::Tensor dy = operand(given_dy), x = operand(given), weight = operand(given_weight);
  const at::Tensor dsum = operand(given_dsum), dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, dsum, dx});
  const int64_t size = x.size(-1), rows = inverse_rms.numel();
  if (cuda::supports(x)) {
    cuda::run<cuda::RmsNormLaunches>("rms_norm_backward", x, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      const cuda::WeightGradientBuffers<T> buffers(weight, rows, cuda::row_threads<T>(size), wanted.weight);
      dweight = buffers.sum();
      return kernels.backward(
          backward_call<T>(dy, x, weight, inverse_rms, kind == NormWeight::zero_centered, dx, dsum),
          buffers.call(),
          rows);
    });
    return {dx, dweight};
  }
  cpu::run<RmsNormKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = backward_call<T>(dy, x, weight, inverse_rms, kind == NormWeight::zero_centered, dx, dsum);
    const auto backward = [&](Wide<T>* sums, int64_t first, int64_t last) {
      kernels.backward(call, sums, first, last);
    };
    dweight = over_blocks<T>(weight, rows, kRowsABlock, size, wanted.weight, backward);
  });
  return {dx, dweight};
}

Added added_to(const at::Tensor& x, const at::Tensor& branch) {
  return branch.defined() ? Added{branch.contiguous(), at::empty_like(x)} : Added{};
}

struct RmsNormFunction : AutogradFunction<RmsNormFunction> {
  // Returns the normalized rows and, if `with_sum`, the normalized sum, which is x itself if there is no branch.
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& branch,
      double eps,
      NormWeight kind,
      bool with_sum) {
    const Added added = added_to(x, branch.value_or(at::Tensor()));
    auto [normed, inverse_rms] = forward_of(x, weight, eps, kind, true, added);
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
    return std::get<0>(
        forward_of(saved_or_recomputed(ctx, "x", saved[0]), saved[1], ctx->saved_data["eps"].toDouble(), kind, false));
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
      std::tie(dsum, dweight) = backward_of(
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
  if (!supports_rows(x)) {
    return reference::rms_norm(x, weight, eps, kind);
  }
  if (will_differentiate(x, weight)) {
    const auto outputs =
        RmsNormFunction::apply(x.contiguous(), weight.contiguous(), std::optional<at::Tensor>(), eps, kind, false);
    return recomputable(outputs[0], RmsNormFunction::recompute);
  }
  return std::get<0>(forward_of(x.contiguous(), weight.contiguous(), eps, kind, false));
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
  if (!supports_rows(hidden_states)) {
    return reference::add_rms_norm(hidden_states, branch, weight, eps, kind);
  }
  const at::Tensor x = hidden_states.contiguous();
  if (will_differentiate(hidden_states, branch, weight)) {
    const auto outputs = RmsNormFunction::apply(
        x, weight.contiguous(), branch.defined() ? std::optional(branch) : std::nullopt, eps, kind, true);
    return {outputs[1], recomputable(outputs[0], RmsNormFunction::recompute)};
  }
  const Added added = added_to(x, branch);
  const at::Tensor normed = std::get<0>(forward_of(x, weight.contiguous(), eps, kind, false, added));
  return {branch.defined() ? added.sum : hidden_states, normed};
}

}  // namespace lehr::ops
