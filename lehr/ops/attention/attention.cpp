// Attention: checks, dispatch and the autograd function.
#include "lehr/ops/attention/attention.h"

#include <cmath>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/attention/attention_cpu.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "lehr/ops/attention/attention_varlen.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/recompute.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the gradient of the sinks (Hq): each is a key with value zero, whose weight is exp(sink - lse).
at::Tensor sinks_gradient_by_head(
    const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks) {
  const at::Tensor products = (dout.to(at::kFloat) * out.to(at::kFloat)).sum(-1).transpose(1, 2);  // (B, Hq, T)
  return (sinks.unsqueeze(-1) - lse).exp().mul(products).sum(at::IntArrayRef{0, 2}, false, at::kDouble).neg();
}

struct AttentionFunction : AutogradFunction<AttentionFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& sinks,
      const cpu::AttentionPlan& plan) {
    auto [out, lse] = cpu::attention_forward(q, k, v, plan, true);
    ctx->save_for_backward(
        {save_or_recompute(ctx, "q", q),
         save_or_recompute(ctx, "k", k),
         save_or_recompute(ctx, "v", v),
         out,
         lse,
         plan.first_keys,
         plan.sinks});
    ctx->saved_data["scale"] = plan.scale;
    ctx->saved_data["softcap"] = plan.softcap;
    ctx->saved_data["window"] = plan.window;
    if (sinks) {
      ctx->saved_data["sinks_type"] = sinks->scalar_type();
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::attention, "lehr::attention_backward");
    refuse_double_backward("attention");
    const auto saved = ctx->get_saved_variables();
    const cpu::AttentionPlan plan{
        .first_keys = saved[5],
        .sinks = saved[6],
        .scale = ctx->saved_data["scale"].toDouble(),
        .softcap = ctx->saved_data["softcap"].toDouble(),
        .window = ctx->saved_data["window"].toInt()};
    const at::Tensor dout = grads[0].contiguous();
    auto [dq, dk, dv] = cpu::attention_backward(
        dout,
        saved_or_recomputed(ctx, "q", saved[0]),
        saved_or_recomputed(ctx, "k", saved[1]),
        saved_or_recomputed(ctx, "v", saved[2]),
        saved[3],
        saved[4],
        plan);
    at::Tensor dsinks;
    if (plan.sinks.defined() && ctx->needs_input_grad(3)) {
      dsinks =
          sinks_gradient_by_head(dout, saved[3], saved[4], plan.sinks).to(ctx->saved_data["sinks_type"].toScalarType());
    }
    return {dq, dk, dv, dsinks, {}};
  }
};

void check_row_mask(const char* name, const at::Tensor& mask, const at::Tensor& k) {
  require(
      !mask.defined() ||
          (mask.dim() == 2 && (mask.size(0) == 1 || mask.size(0) == k.size(0)) && mask.size(1) == k.size(1)),
      "attention: expected {} (B or 1, S) = {}x{}, found {}",
      name,
      k.size(0),
      k.size(1),
      mask.defined() ? shape_of(mask) : "");
}

void check_sequences(const AttentionMask& mask, const at::Tensor& k) {
  const at::Tensor& ends = mask.sequence_ends;
  require(
      !ends.defined() || (ends.dim() == 2 && (ends.size(0) == 1 || ends.size(0) == k.size(0)) && ends.size(1) > 0 &&
                          ends.scalar_type() == at::kInt),
      "attention: expected sequence_ends (B or 1, M) int32 with B = {}, found {} {}; make them with sequence_ends()",
      k.size(0),
      ends.defined() ? c10::toString(ends.scalar_type()) : "",
      ends.defined() ? shape_of(ends) : "");
  const at::Tensor& lengths = mask.cumulative_lengths;
  require(
      !lengths.defined() || (lengths.dim() == 1 && lengths.size(0) > 1 && (lengths.size(0) - 1) % k.size(0) == 0 &&
                             lengths.scalar_type() == at::kInt),
      "attention: expected cumulative_lengths (N + 1) int32, equally many for each of {} rows, found {} {}; make them "
      "with with_cumulative_lengths()",
      k.size(0),
      lengths.defined() ? c10::toString(lengths.scalar_type()) : "",
      lengths.defined() ? shape_of(lengths) : "");
}

void check(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  require(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) &&
          k.sizes().slice(0, 3) == v.sizes().slice(0, 3) && q.size(3) == k.size(3) && k.size(2) > 0 &&
          q.size(2) % k.size(2) == 0,
      "attention: expected q (B, T, Hq, D), k (B, S, Hkv, D) and v (B, S, Hkv, Dv) with Hkv dividing Hq, found {}, {} "
      "and {}",
      shape_of(q),
      shape_of(k),
      shape_of(v));
  require(
      q.size(1) <= k.size(1),
      "attention: expected at most as many queries as keys, as the queries are the last positions; found {} and {}",
      q.size(1),
      k.size(1));
  require(
      q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() && q.is_floating_point(),
      "attention: expected q, k and v of one floating type, found {}, {} and {}",
      c10::toString(q.scalar_type()),
      c10::toString(k.scalar_type()),
      c10::toString(v.scalar_type()));
  check_row_mask("document_ids", mask.document_ids, k);
  check_row_mask("key_padding", mask.key_padding, k);
  require(
      !mask.key_padding.defined() || mask.key_padding.scalar_type() == at::kBool,
      "attention: expected bool key_padding, found {}",
      mask.key_padding.defined() ? c10::toString(mask.key_padding.scalar_type()) : "");
  check_sequences(mask, k);
  check_attention_options("attention", options);
  require(!options.window || mask.causal, "attention: window: requires causal order; set mask.causal to true");
  const at::Tensor& sinks = options.sinks;
  require(
      !sinks.defined() || (sinks.dim() == 1 && sinks.size(0) == q.size(2) && sinks.is_floating_point()),
      "attention: sinks: expected (Hq) = {} floating numbers, found {} {}",
      q.size(2),
      sinks.defined() ? c10::toString(sinks.scalar_type()) : "",
      sinks.defined() ? shape_of(sinks) : "");
}

// Runs the CPU's fused tiles. `lengths` may be undefined: each row is one sequence.
at::Tensor in_tiles(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& lengths,
    const AttentionOptions& options) {
  cpu::AttentionPlan plan{
      .first_keys = cpu::first_keys_of(lengths, k.size(0), k.size(1)),
      .sinks = {},
      .scale = options.scale.value_or(default_scale(q.size(3)))};
  plan.softcap = options.softcap.value_or(plan.softcap);
  plan.window = options.window.value_or(plan.window);
  std::optional<at::Tensor> sinks;  // autograd takes no undefined tensor as an argument
  if (options.sinks.defined()) {
    sinks = options.sinks;
    plan.sinks = options.sinks.detach().to(at::kFloat).contiguous();
  }
  if (will_differentiate(q, k, v, options.sinks)) {
    return AttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), sinks, plan);
  }
  return std::get<0>(cpu::attention_forward(q.contiguous(), k.contiguous(), v.contiguous(), plan, false));
}

// True if the rows of a call are sequences, and ATen would need a mask or all scores for it. Rows of one token are left
// out: FlashAttention mistakes them for decoding with a cache, and interprets the number of sequences differently.
bool wants_variable_length(
    const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, const AttentionOptions& options) {
  const bool sequences = mask.causal && !mask.allowed.defined() && !mask.bias.defined() && q.size(1) == k.size(1) &&
                         q.size(1) > 1 && q.numel() > 0;
  const bool restricted =
      mask.document_ids.defined() || mask.key_padding.defined() || (options.window && *options.window < k.size(1));
  // ATen's kernels for such wide heads know no groups of them.
  const bool wide_groups = q.is_cuda() && q.size(2) != k.size(2) && q.size(3) > 256;
  return sequences && (restricted || options.sinks.defined() || options.softcap || wide_groups);
}
// True if a CPU call is plain causal attention of whole rows, for which ATen has a fused kernel that needs no mask. On
// meta, float64 stands for the CPU, because models in float64 do not train on GPUs.
bool is_plain_on_cpu(
    const at::Tensor& q,
    const at::Tensor& k,
    const AttentionMask& mask,
    const at::Tensor& cumulative_lengths,
    const AttentionOptions& options) {
  const bool on_cpu = q.is_cpu() || (q.is_meta() && q.scalar_type() == at::kDouble);
  const bool whole_rows = cumulative_lengths.defined() && cumulative_lengths.numel() == k.size(0) + 1;
  return on_cpu && whole_rows && !mask.key_padding.defined() && !options.window && !options.softcap &&
         !options.sinks.defined();
}
}  // namespace

at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "attention",
         .inputs =
             {{"q", q},
              {"k", k},
              {"v", v},
              {"document_ids", mask.document_ids},
              {"key_padding", mask.key_padding},
              {"sinks", options.sinks}},
         .shape = {q.size(0), q.size(1), q.size(2), v.size(3)},
         .dtype = q.scalar_type()});
  }
  const OperatorScope scope(OperatorKind::attention, "lehr::attention");
  check(q, k, v, mask, options);
  const bool fused = cpu::supports_attention(q, k, v, mask);
  const VariableLengthKernel* kernel =
      wants_variable_length(q, k, mask, options) ? variable_length_kernel(q, v, options) : nullptr;
  if (fused || kernel != nullptr) {
    if (const auto lengths = cumulative_lengths_of(mask, k.size(0), k.size(1))) {
      if (fused) {
        return without_hidden_queries(in_tiles(q, k, v, *lengths, options), mask.key_padding);
      }
      if (is_plain_on_cpu(q, k, mask, *lengths, options)) {
        return reference::attention(q, k, v, {}, options);
      }
      const Sequences sequences{
          .cumulative_lengths =
              lengths->defined() ? *lengths : cumulative_lengths_of_rows(k.size(0), k.size(1), k.device()),
          .row_length = k.size(1)};
      return variable_length_attention(q, k, v, sequences, mask.key_padding, options, *kernel);
    }
  }
  return reference::attention(q, k, v, mask, options);
}

}  // namespace lehr::ops
