// Attention of a stretch of queries to a stretch of keys, with the log-sums that join several such parts to the whole:
// what attention over a row is made of when its keys come one stretch after the other.
//
// The plain definition in ATen, for any device and type, computed in float32 at least. It holds the scores of 128
// queries at a time. Autograd does not see it: whoever joins parts knows the gradient of the whole.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/attention.h"

namespace lehr::ops {

/// Where queries and keys stand in their row, and which keys a query may see.
struct AttentionStretch {
  int64_t first_query = 0;  ///< Position of the first query.
  int64_t first_key = 0;    ///< Position of the first key.
  bool causal = true;
  at::Tensor query_documents = {};  ///< (B or 1, T) integers; with key_documents, or neither.
  at::Tensor key_documents = {};    ///< (B or 1, S).
  at::Tensor key_padding = {};      ///< (B or 1, S) bool: false hides a key.

  /// Whether causal order and window leave any of `keys` keys to any of `queries` queries.
  bool sees_any(int64_t queries, int64_t keys, std::optional<int64_t> window) const;
};

/// A part of attention's result, in the wide type.
struct AttentionPart {
  at::Tensor output;   ///< (B, T, Hq, Dv), as if there were no other keys; zeros for a query that sees none.
  at::Tensor log_sum;  ///< (B, T, Hq), the logarithm of the sum of exp(score); minus infinity where there is none.
};

/// The part of no keys at all, for queries like q.
AttentionPart empty_attention_part(const at::Tensor& q, int64_t value_size);
/// q (B, T, Hq, D), k (B, S, Hkv, D), v (B, S, Hkv, Dv), as ops::attention takes them. Sinks are left out.
AttentionPart attention_part(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options);
/// Joins the results for two sets of keys.
AttentionPart merge(const AttentionPart& one, const AttentionPart& other);
/// Adds sinks (Hq) to a whole result.
AttentionPart with_sinks(const AttentionPart& whole, const at::Tensor& sinks);

/// Gradients of q, k and v, in the wide type.
struct AttentionPartGradients {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};
/// What a stretch of keys adds to the gradients. `log_sum` and `products` (B, T, Hq) are of the whole result: its
/// log-sums, sinks included, and the sums of its gradient `dout` times its output over a head.
AttentionPartGradients attention_part_backward(
    const at::Tensor& dout,
    const at::Tensor& products,
    const at::Tensor& log_sum,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options);
/// The gradient of the sinks (Hq): each is a key with value zero, whose weight is exp(sink - log_sum).
at::Tensor sinks_gradient(const at::Tensor& products, const at::Tensor& log_sum, const at::Tensor& sinks);

}  // namespace lehr::ops
