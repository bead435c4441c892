// The autograd function of variable-length attention, with sinks and padding, over its kernels.
#include "lehr/ops/attention/attention_varlen.h"

#include <ATen/ops/_unsafe_view.h>

#include <limits>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/attention/attention_lse.h"
#include "lehr/ops/attention/attention_meta.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/recompute.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments that forward and backward share.
struct VariableLengthCall {
  Sequences sequences;
  AttentionOptions options;  // without sinks
  at::Tensor hidden;         // (N, 1, 1) bool: padding; undefined for none
  const VariableLengthKernel* kernel;
};

struct CallHolder : torch::CustomClassHolder {
  explicit CallHolder(VariableLengthCall c) : call(std::move(c)) {}
  VariableLengthCall call;
};

struct Attended {
  at::Tensor out;  // (B, T, Hq, Dv)
  at::Tensor lse;  // (Hq, N), sinks included
};

// Converts (B, T, ...) to (N, ...).
at::Tensor tokens_of(const at::Tensor& x) {
  return x.flatten(0, 1);
}

Attended attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& sinks,
    const VariableLengthCall& call) {
  auto [out, lse] = call.kernel->forward(tokens_of(q), tokens_of(k), tokens_of(v), call.sequences, call.options);
  if (sinks) {
    // A sink adds exp(sink) to the softmax sum of a query, which without it is exp(lse).
    const at::Tensor sink = sinks->detach().to(lse.scalar_type()).unsqueeze(1);  // (Hq, 1)
    const at::Tensor share = (lse - sink).sigmoid();                             // (Hq, N)
    out = (out * share.t().unsqueeze(-1)).to(out.scalar_type());
    lse = at::logaddexp(lse, sink);
  }
  if (call.hidden.defined()) {
    out.masked_fill_(call.hidden, 0);
    lse.masked_fill_(call.hidden.view({1, -1}), std::numeric_limits<double>::infinity());  // all weights become 0
  }
  return {.out = at::_unsafe_view(out, {q.size(0), q.size(1), q.size(2), v.size(3)}), .lse = lse};
}

struct VariableLengthFunction : AutogradFunction<VariableLengthFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& sinks,
      const VariableLengthCall& call) {
    const Attended attended = attend(q, k, v, sinks, call);
    ctx->save_for_backward(
        {save_or_recompute(ctx, "q", q),
         save_or_recompute(ctx, "k", k),
         save_or_recompute(ctx, "v", v),
         attended.out,
         attended.lse,
         sinks.value_or(at::Tensor())});
    ctx->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<CallHolder>(call));
    return attended.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::attention, "lehr::attention_backward");
    refuse_double_backward("attention");
    const auto saved = ctx->get_saved_variables();
    const auto holder = saved_object<CallHolder>(ctx, "call");
    const VariableLengthCall& call = holder->call;
    const at::Tensor q = saved_or_recomputed(ctx, "q", saved[0]), k = saved_or_recomputed(ctx, "k", saved[1]),
                     v = saved_or_recomputed(ctx, "v", saved[2]);
    const at::Tensor out = tokens_of(saved[3]);
    const at::Tensor& lse = saved[4];
    const at::Tensor& sinks = saved[5];
    const auto shown = [&](const at::Tensor& x) { return call.hidden.defined() ? x.masked_fill(call.hidden, 0) : x; };
    const at::Tensor dout = shown(tokens_of(grads[0]));
    const auto [dq, dk, dv] =
        call.kernel->backward(dout, tokens_of(q), tokens_of(k), tokens_of(v), out, lse, call.sequences, call.options);
    at::Tensor dsinks;
    if (sinks.defined() && ctx->needs_input_grad(3)) {
      const auto type = lse.scalar_type();
      const at::Tensor products = (dout.to(type) * out.to(type)).sum(-1);  // (N, Hq)
      dsinks = sinks_gradient(products.unsqueeze(0), lse.t().unsqueeze(0), sinks).to(sinks.scalar_type());
    }
    // Hidden positions are sequences of their own, so their values do not reach other gradients.
    return {shown(dq).view_as(q), shown(dk).view_as(k), shown(dv).view_as(v), dsinks, {}};
  }
};
}  // namespace

const VariableLengthKernel* variable_length_kernel(
    const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options) {
  if (runs_on_meta(q)) {
    return &kFlashOnMeta;
  }
  if (q.is_cpu()) {
    // Few queries in the types of the fused kernel: ATen's path is quicker than one call per sequence.
    const bool few = q.size(1) < kFewQueries && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16);
    return few ? nullptr : &reference::kVariableLength;
  }
  if (!q.is_cuda()) {
    return nullptr;
  }
  return flash_takes(q.scalar_type(), q.size(3), v.size(3), options) ? &kFlash
         : efficient_takes(q.scalar_type(), options)                 ? &kEfficient
                                                                     : nullptr;
}

at::Tensor variable_length_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const at::Tensor& key_padding,
    const AttentionOptions& options,
    const VariableLengthKernel& kernel) {
  VariableLengthCall call{.sequences = sequences, .options = options, .hidden = {}, .kernel = &kernel};
  call.options.scale = options.scale.value_or(default_scale(q.size(3)));
  call.options.sinks.reset();
  if (key_padding.defined()) {
    call.hidden = key_padding.logical_not().expand({q.size(0), q.size(1)}).reshape({-1, 1, 1});
  }
  std::optional<at::Tensor> sinks;  // autograd takes no undefined tensor as an argument
  if (options.sinks.defined()) {
    sinks = options.sinks;
  }
  if (will_differentiate(q, k, v, options.sinks)) {
    return VariableLengthFunction::apply(q, k, v, sinks, call);
  }
  return attend(q, k, v, sinks, call).out;
}

}  // namespace lehr::ops
