// The definition of attention: ATen's scaled_dot_product_attention with an explicit mask, and separate matmuls for
// sinks and softcap, which it does not support.
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "lehr/meter/on_meta.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/attention/attention_meta.h"
#include "lehr/ops/attention/attention_sequences.h"

namespace lehr::ops::reference {

namespace {
// Returns the mask: bool, broadcasts to (B, Hq, T, S), true for visible keys; undefined if all keys are visible to all
// queries.
at::Tensor allowed_keys(
    const AttentionMask& mask, std::optional<int64_t> window, int64_t queries, int64_t keys, at::Device device) {
  at::Tensor allowed;
  const auto restrict_to = [&](const at::Tensor& more) {
    allowed = allowed.defined() ? allowed.logical_and(more) : more.to(at::kBool);
  };
  if (mask.causal) {
    const at::Tensor key = at::arange(keys, at::TensorOptions(at::kLong).device(device));
    const at::Tensor own = key.narrow(0, keys - queries, queries).unsqueeze(1);
    restrict_to(key <= own);
    if (window && *window < keys) {
      restrict_to(key > own - *window);
    }
  }
  if (mask.document_ids.defined()) {
    const at::Tensor own = mask.document_ids.narrow(1, keys - queries, queries);
    restrict_to((own.unsqueeze(2) == mask.document_ids.unsqueeze(1)).unsqueeze(1));  // (B, 1, T, S)
  }
  if (mask.key_padding.defined()) {
    restrict_to(mask.key_padding.unsqueeze(1).unsqueeze(1));  // (B, 1, 1, S)
  }
  if (mask.allowed.defined()) {
    restrict_to(mask.allowed);
  }
  return allowed;
}

// Returns the number of leading keys that are outside of the window of all queries.
int64_t keys_left_behind(std::optional<int64_t> window, int64_t queries, int64_t keys) {
  return window && *window < keys - queries + 1 ? keys - queries + 1 - *window : 0;
}

// Computes the definition with separate matmuls, in float32 or wider. Holds all scores.
at::Tensor written_out(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), keys = k.size(1), key_heads = k.size(2);
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto of_keys = [&](const at::Tensor& x) { return x.to(type).transpose(1, 2).unsqueeze(2); };
  const at::Tensor query =
      q.to(type).transpose(1, 2).reshape({batch, key_heads, heads / key_heads, queries, q.size(3)});
  at::Tensor scores = query.matmul(of_keys(k).transpose(-1, -2)) * options.scale.value_or(default_scale(q.size(3)));
  scores = scores.view({batch, heads, queries, keys});  // (B, Hq, T, S)
  if (options.softcap) {
    scores = (scores / *options.softcap).tanh() * *options.softcap;
  }
  if (mask.bias.defined()) {
    scores = scores + mask.bias.detach().to(type);
  }
  const at::Tensor allowed = allowed_keys(mask, options.window, queries, keys, q.device());
  if (allowed.defined()) {
    scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }
  at::Tensor highest = scores.detach().amax(-1, true);  // (B, Hq, T, 1)
  at::Tensor sink;
  if (options.sinks.defined()) {
    sink = options.sinks.to(type).view({heads, 1, 1});
    highest = at::maximum(highest, sink.detach());
  }
  highest = highest.clamp_min(std::numeric_limits<float>::lowest());  // for fully masked queries
  const at::Tensor weights = (scores - highest).exp();
  at::Tensor sum = weights.sum(-1, true);
  if (sink.defined()) {
    sum = sum + (sink - highest).exp();
  }
  const at::Tensor grouped = weights.view({batch, key_heads, heads / key_heads, queries, keys});
  const at::Tensor attended = grouped.matmul(of_keys(v)).view({batch, heads, queries, v.size(3)});
  // The largest unnormalized weight is 1, so sums are at least 1, except for fully masked queries, whose sum is 0. A
  // smaller bound than 1 would make their gradients infinite, and NaN when multiplied by zero.
  return (attended / sum.clamp_min(1)).transpose(1, 2).to(q.scalar_type());
}

// Calls scaled_dot_product_attention, which supports neither sinks nor softcap.
at::Tensor by_aten(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  const int64_t queries = q.size(1);
  const int64_t keys = k.size(1);
  const bool restricted = mask.document_ids.defined() || mask.key_padding.defined() || mask.allowed.defined() ||
                          mask.bias.defined() || (options.window && *options.window < keys);
  const bool plain_causal = mask.causal && !restricted && queries == keys;
  at::Tensor fully_masked;  // fully masked queries
  std::optional<at::Tensor> attention_bias;
  if (!plain_causal && (restricted || (mask.causal && queries > 1))) {
    at::Tensor allowed = allowed_keys(mask, options.window, queries, keys, q.device());
    if (allowed.defined()) {
      // ATen's kernels differ in their outputs for fully masked queries, so their mask is removed and their output set
      // to zero afterwards.
      fully_masked = allowed.any(-1, true).logical_not();
      allowed = allowed.logical_or(fully_masked);
    }
    if (mask.bias.defined()) {
      const at::Tensor bias = mask.bias.detach().to(q.scalar_type());
      attention_bias =
          allowed.defined()
              ? at::where(allowed, bias, at::scalar_tensor(-std::numeric_limits<double>::infinity(), bias.options()))
              : bias;
    } else {
      attention_bias = allowed;
    }
    while (attention_bias && attention_bias->dim() < 4) {
      attention_bias = attention_bias->unsqueeze(0);
    }
  }
  const at::Tensor attended = runs_on_meta(q) ? flash_attention_on_meta(q, k, v, attention_bias, plain_causal)
                                              : at::scaled_dot_product_attention(
                                                    q.transpose(1, 2),
                                                    k.transpose(1, 2),
                                                    v.transpose(1, 2),
                                                    attention_bias,
                                                    0.0,
                                                    plain_causal,
                                                    options.scale,
                                                    q.size(2) != k.size(2));  // (B, Hq, T, Dv)
  const at::Tensor kept = fully_masked.defined() ? attended.masked_fill(fully_masked, 0) : attended;
  return kept.transpose(1, 2);
}
}  // namespace

at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  const int64_t keys = k.size(1);
  if (const int64_t behind = keys_left_behind(options.window, q.size(1), keys); behind > 0) {
    const int64_t seen = keys - behind;
    return reference::attention(
        q, k.narrow(1, behind, seen), v.narrow(1, behind, seen), without_first_keys(mask, behind, keys), options);
  }
  const at::Tensor attended = options.sinks.defined() || options.softcap ? written_out(q, k, v, mask, options)
                                                                         : by_aten(q, k, v, mask, options);
  return without_hidden_queries(attended, mask.key_padding);
}

}  // namespace lehr::ops::reference
