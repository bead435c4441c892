#include "lehr/ops/attention/attention_lse.h"

#include <algorithm>
#include <limits>

#include "lehr/meter/operator_profile.h"

namespace lehr::ops {

namespace {
constexpr int64_t kQueriesAtATime = 128;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::ScalarType wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The inputs of a call, grouped by key/value head, which G query heads share.
struct Heads {
  at::Tensor q;  // (B, Hkv, G, T, D)
  at::Tensor k;  // (B, Hkv, 1, S, D)
  at::Tensor v;  // (B, Hkv, 1, S, Dv)
};

// Converts (B, T, Hq, D) to (B, Hkv, G, T, D) in float32 or wider.
at::Tensor by_key_head(const at::Tensor& x, int64_t key_heads) {
  return x.to(wide(x)).unflatten(2, {key_heads, x.size(2) / key_heads}).permute({0, 2, 3, 1, 4});
}
// The inverse.
at::Tensor by_position(const at::Tensor& x) {
  return x.permute({0, 3, 1, 2, 4}).flatten(2, 3);
}

Heads heads_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {.q = by_key_head(q, k.size(2)), .k = by_key_head(k, k.size(2)), .v = by_key_head(v, k.size(2))};
}

// Returns the mask of queries [first, first + count): bool, broadcasts to (B, Hkv, G, count, S), true for visible keys;
// undefined if all keys are visible.
at::Tensor visible_keys(
    const AttentionStretch& stretch, std::optional<int64_t> window, int64_t first, int64_t count, const at::Tensor& k) {
  at::Tensor visible;
  const auto restrict_to = [&](const at::Tensor& more) {
    visible = visible.defined() ? visible.logical_and(more) : more;
  };
  const int64_t keys = k.size(3);
  const int64_t first_query = stretch.first_query + first;
  const bool all_behind = first_query >= stretch.first_key + keys - 1;
  const bool all_in_window = !window || first_query + count - 1 - stretch.first_key < *window;
  if (stretch.causal && !(all_behind && all_in_window)) {
    const auto positions = [&](int64_t begin, int64_t size) {
      return at::arange(begin, begin + size, at::TensorOptions(at::kLong).device(k.device()));
    };
    const at::Tensor own = positions(first_query, count).unsqueeze(1);
    const at::Tensor key = positions(stretch.first_key, keys);
    restrict_to(key <= own);
    if (window) {
      restrict_to(key > own - *window);
    }
  }
  if (stretch.query_documents.defined()) {
    const at::Tensor own = stretch.query_documents.narrow(1, first, count).unsqueeze(2);
    restrict_to((own == stretch.key_documents.unsqueeze(1)).unsqueeze(1).unsqueeze(1));  // (B, 1, 1, count, S)
  }
  if (stretch.key_padding.defined()) {
    restrict_to(stretch.key_padding.view({stretch.key_padding.size(0), 1, 1, 1, keys}));
  }
  return visible;
}

// Returns the scores before the mask, with scale and softcap.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  const at::Tensor scores = q.matmul(k.transpose(-1, -2)) * options.scale.value_or(default_scale(q.size(4)));
  return options.softcap ? (scores / *options.softcap).tanh() * *options.softcap : scores;
}

at::Tensor hide(const at::Tensor& scores, const at::Tensor& visible) {
  return visible.defined() ? scores.masked_fill(visible.logical_not(), -kInfinity) : scores;
}

// Returns exp(a - b), and 0 where both are minus infinity.
at::Tensor exp_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b.masked_fill(b == -kInfinity, 0)).exp();
}
}  // namespace

bool AttentionStretch::sees_any(int64_t queries, int64_t keys, std::optional<int64_t> window) const {
  return !causal || (first_key < first_query + queries && (!window || first_key + keys - 1 > first_query - *window));
}

AttentionPart empty_attention_part(const at::Tensor& q, int64_t value_size) {
  const auto options = q.options().dtype(wide(q));
  return {
      .output = at::zeros({q.size(0), q.size(1), q.size(2), value_size}, options),
      .lse = at::full({q.size(0), q.size(1), q.size(2)}, -kInfinity, options)};
}

AttentionPart attention_part(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options) {
  const OperatorScope scope(OperatorKind::attention, "lehr::attention_part");
  const Heads heads = heads_of(q, k, v);
  AttentionPart part = empty_attention_part(q, v.size(3));
  for (int64_t first = 0; first < q.size(1); first += kQueriesAtATime) {
    const int64_t count = std::min(kQueriesAtATime, q.size(1) - first);
    const at::Tensor scores = hide(
        scores_of(heads.q.narrow(3, first, count), heads.k, options),
        visible_keys(stretch, options.window, first, count, heads.k));
    const at::Tensor lse = scores.logsumexp(-1, /*keepdim=*/true);  // (B, Hkv, G, count, 1)
    part.output.narrow(1, first, count).copy_(by_position(exp_difference(scores, lse).matmul(heads.v)));
    part.lse.narrow(1, first, count).copy_(by_position(lse).squeeze(-1));
  }
  return part;
}

AttentionPart merge(const AttentionPart& one, const AttentionPart& other) {
  const at::Tensor lse = at::logaddexp(one.lse, other.lse);
  const auto share = [&](const AttentionPart& part) {
    return part.output * exp_difference(part.lse, lse).unsqueeze(-1);
  };
  return {.output = share(one) + share(other), .lse = lse};
}

AttentionPart with_sinks(const AttentionPart& whole, const at::Tensor& sinks) {
  const at::Tensor lse = at::logaddexp(whole.lse, sinks.to(whole.lse.scalar_type()));
  return {.output = whole.output * exp_difference(whole.lse, lse).unsqueeze(-1), .lse = lse};
}

AttentionPartGradients attention_part_backward(
    const at::Tensor& dout,
    const at::Tensor& products,
    const at::Tensor& lse,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionStretch& stretch,
    const AttentionOptions& options) {
  const OperatorScope scope(OperatorKind::attention, "lehr::attention_part_backward");
  const Heads heads = heads_of(q, k, v);
  const at::Tensor dout_by_head = by_key_head(dout, k.size(2));
  const at::Tensor products_by_head = by_key_head(products.unsqueeze(-1), k.size(2));
  const at::Tensor lse_by_head = by_key_head(lse.unsqueeze(-1), k.size(2));
  at::Tensor dq = at::zeros_like(heads.q);
  at::Tensor dk = at::zeros_like(heads.k);
  at::Tensor dv = at::zeros_like(heads.v);
  const double scale = options.scale.value_or(default_scale(q.size(3)));
  for (int64_t first = 0; first < q.size(1); first += kQueriesAtATime) {
    const int64_t count = std::min(kQueriesAtATime, q.size(1) - first);
    const auto tile = [&](const at::Tensor& x) { return x.narrow(3, first, count); };
    const at::Tensor scores = scores_of(tile(heads.q), heads.k, options);  // (B, Hkv, G, count, S)
    const at::Tensor visible = visible_keys(stretch, options.window, first, count, heads.k);
    const at::Tensor weights = exp_difference(hide(scores, visible), tile(lse_by_head));
    // The gradient of the softmax: dS = P (dP - sum(dO O)).
    const at::Tensor slope = tile(dout_by_head).matmul(heads.v.transpose(-1, -2)) - tile(products_by_head);
    at::Tensor dscores = weights * slope * scale;
    if (options.softcap) {
      dscores = dscores * (1 - (scores / *options.softcap).square());  // tanh' = 1 - tanh^2
    }
    // Sum over the G query heads of a key head.
    dv.add_(weights.transpose(-1, -2).matmul(tile(dout_by_head)).sum(2, /*keepdim=*/true));
    dk.add_(dscores.transpose(-1, -2).matmul(tile(heads.q)).sum(2, /*keepdim=*/true));
    tile(dq).copy_(dscores.matmul(heads.k));
  }
  return {.q = by_position(dq), .k = by_position(dk), .v = by_position(dv)};
}

at::Tensor sinks_gradient(const at::Tensor& products, const at::Tensor& lse, const at::Tensor& sinks) {
  return exp_difference(sinks.to(lse.scalar_type()), lse)
      .mul(products)
      .sum(at::IntArrayRef{0, 1}, false, at::kDouble)
      .neg();
}

}  // namespace lehr::ops
