// Attention as plain matmuls with an explicit mask, the definition for tests of the operator.
#pragma once

#include <cmath>
#include <limits>

#include "lehr/ops/attention/attention.h"
#include "lehr/ops/attention/kernels.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {

struct Shape {
  int64_t batch, queries, keys, query_heads, key_heads, size;
  int64_t value_size = 0;  // 0: equal to `size`
};

// Softmax over the visible keys of each query: hidden scores are removed before the sum. A sink is one more score of
// the query, whose value is zero. The output of a query at a hidden position is zero.
inline at::Tensor definition(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionOptions& options = {}) {
  const int64_t queries = q.size(1), keys = k.size(1), group = q.size(2) / k.size(2);
  const at::Tensor query = q.transpose(1, 2);
  const at::Tensor key = k.repeat_interleave(group, 2).transpose(1, 2);
  const at::Tensor value = v.repeat_interleave(group, 2).transpose(1, 2);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  at::Tensor scores = query.matmul(key.transpose(2, 3)) * scale;
  if (options.softcap) {
    scores = *options.softcap * (scores / *options.softcap).tanh();
  }
  if (mask.bias.defined()) {
    scores = scores + mask.bias.to(scores.scalar_type());
  }
  const auto row_of = [&](const at::Tensor& of_keys) { return of_keys.expand({q.size(0), keys}).contiguous(); };
  const at::Tensor ids = mask.document_ids.defined() ? row_of(mask.document_ids.to(at::kLong)) : at::Tensor();
  const at::Tensor padding = mask.key_padding.defined() ? row_of(mask.key_padding) : at::Tensor();
  at::Tensor seen = at::ones({q.size(0), 1, queries, keys}, at::kBool);
  bool* sees = seen.data_ptr<bool>();
  for (int64_t b = 0; b < q.size(0); ++b) {
    const int64_t* id = ids.defined() ? ids.data_ptr<int64_t>() + b * keys : nullptr;
    const bool* real = padding.defined() ? padding.data_ptr<bool>() + b * keys : nullptr;
    for (int64_t position = keys - queries; position < keys; ++position) {
      for (int64_t s = 0; s < keys; ++s) {
        *sees++ = (!mask.causal || s <= position) && (!options.window || position - s < *options.window) &&
                  (id == nullptr || id[s] == id[position]) && (real == nullptr || real[s]);
      }
    }
  }
  if (mask.allowed.defined()) {
    seen = seen.logical_and(mask.allowed);
  }
  const at::Tensor hidden = seen.logical_not();
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  at::Tensor highest = scores.amax(-1, true).clamp_min(-1e30).detach();
  at::Tensor sum = (scores - highest).exp().sum(-1, true);
  if (options.sinks.defined()) {
    const at::Tensor sink = options.sinks.view({1, -1, 1, 1});
    highest = at::maximum(highest, sink.detach());
    sum = (scores - highest).exp().sum(-1, true) + (sink - highest).exp();
  }
  const at::Tensor attended = (scores - highest).exp().matmul(value).div(sum.clamp_min(1e-300)).transpose(1, 2);
  return padding.defined()
             ? attended *
                   padding.narrow(1, keys - queries, queries).unsqueeze(-1).unsqueeze(-1).to(attended.scalar_type())
             : attended;
}

inline void expect_attention(
    const std::string& what,
    const Shape& s,
    at::ScalarType type,
    const AttentionMask& mask,
    const AttentionOptions& options = {}) {
  Tensors inputs = {
      random_tensor({s.batch, s.queries, s.query_heads, s.size}, type),
      random_tensor({s.batch, s.keys, s.key_heads, s.size}, type),
      random_tensor({s.batch, s.keys, s.key_heads, s.value_size == 0 ? s.size : s.value_size}, type)};
  if (options.sinks.defined()) {
    inputs.push_back(options.sinks.to(type));
  }
  const auto with_sinks = [&](const Tensors& in) {
    AttentionOptions now = options;
    now.sinks = in.size() > 3 ? in[3] : at::Tensor();
    return now;
  };
  expect_equal_to_definition(
      what,
      [&](const Tensors& in) -> Tensors { return {attention(in[0], in[1], in[2], mask, with_sinks(in))}; },
      [&](const Tensors& in) -> Tensors { return {definition(in[0], in[1], in[2], mask, with_sinks(in))}; },
      inputs,
      {},
      2);  // in bfloat16 the softmax is rounded, too, before the second matmul
}

}  // namespace lehr::ops::test
