// Attention of a range of queries to a range of keys, with the log-sum-exps (LSEs) that merge such parts into the
// whole: the building block of ring attention.
//
// This is the plain definition in ATen, for any device and dtype, computed in float32 or wider. It holds the scores of
// 128 queries at a time. It is not differentiable: its callers compute the gradient of the whole with the functions
// below.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention_options.h"

namespace lehr::ops {

/// Positions of queries and keys in their row, and the keys that are visible.
struct AttentionStretch {
  int64_t first_query = 0;  ///< Position of the first query.
  int64_t first_key = 0;    ///< Position of the first key.
  bool causal = true;
  at::Tensor query_documents = {};  ///< (B or 1, T) integers; with key_documents, or neither.
  at::Tensor key_documents = {};    ///< (B or 1, S).
  at::Tensor key_padding = {};      ///< (B or 1, S) bool: false hides a key.

  /// True if causal order and window leave any of `keys` keys visible to any of `queries` queries.
  bool sees_any(int64_t queries, int64_t keys, std::optional<int64_t> window) const;
};

/// The result of attention to a part of the keys, in float32 or wider.
struct AttentionPart {
  at::Tensor output;  ///< (B, T, Hq, Dv), as if there were no other keys; zeros for a fully masked query.
  at::Tensor lse;     ///< (B, T, Hq): the LSE; minus infinity for a fully masked query.
};

/// Returns the part of an empty range of keys, for queries like q.
AttentionPart empty_attention_part(const at::Tensor& q, int64_t value_size);
/// Returns the part of these keys: q (B, T, Hq, D), k (B, S, Hkv, D), v (B, S, Hkv, Dv), as in ops::attention. Ignores
/// sinks.
AttentionPart attention_part(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options);
/// Merges the results for two disjoint sets of keys.
AttentionPart merge(const AttentionPart& one, const AttentionPart& other);
/// Adds sinks (Hq) to a result for all keys.
AttentionPart with_sinks(const AttentionPart& whole, const at::Tensor& sinks);

/// Gradients of q, k and v, in float32 or wider.
struct AttentionPartGradients {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};
/// Returns the contribution of a range of keys to the gradients. `lse` and `products` (B, T, Hq) are those of the
/// whole result: its LSEs, sinks included, and the sums over a head's elements of its output times its gradient `dout`.
AttentionPartGradients attention_part_backward(
    const at::Tensor& dout,
    const at::Tensor& products,
    const at::Tensor& lse,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options);
/// Returns the gradient of the sinks (Hq): each is a key with value zero, whose weight is exp(sink - lse).
at::Tensor sinks_gradient(const at::Tensor& products, const at::Tensor& lse, const at::Tensor& sinks);

}  // namespace lehr::ops
