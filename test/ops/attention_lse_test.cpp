// Attention over parts of the keys, merged by log-sum-exp, equals attention over all keys, gradients included.
#include "lehr/ops/attention/attention_lse.h"

#include <gmock/gmock.h>

#include "lehr/ops/attention/attention.h"

namespace lehr::ops {
namespace {

constexpr int64_t kKeys = 180;  // the last 150 positions are queries: two tiles
constexpr int64_t kQueries = 150;

struct Call {
  std::string what;
  AttentionMask mask = {};
  AttentionOptions options = {};
};

std::vector<Call> calls() {
  const at::Tensor documents = (at::arange(kKeys) / 65).to(at::kLong).unsqueeze(0);
  at::Tensor padding = at::ones({2, kKeys}, at::kBool);
  padding[0].narrow(0, 0, 70).fill_(false);  // some queries are fully masked
  const at::Tensor sinks = at::randn({4}, at::kDouble);
  return {
      {.what = "plain"},
      {.what = "no order", .mask = {.causal = false}},
      {.what = "documents and padding", .mask = {.document_ids = documents, .key_padding = padding}},
      {.what = "window", .options = {.window = 20}},
      {.what = "all",
       .mask = {.document_ids = documents % 2, .key_padding = padding},
       .options = {.scale = 0.3, .softcap = 2.0, .window = 100, .sinks = sinks}}};
}

void expect_parts_join(const Call& call, at::ScalarType type, double tolerance) {
  const auto random = [&](int64_t tokens, int64_t heads, int64_t size) {
    return at::randn({2, tokens, heads, size}, at::kDouble).to(type).set_requires_grad(true);
  };
  const at::Tensor q = random(kQueries, 4, 8), k = random(kKeys, 2, 8), v = random(kKeys, 2, 5);
  const at::Tensor dout = at::randn({2, kQueries, 4, 5}, at::kDouble).to(type);
  AttentionOptions options = call.options;
  if (options.sinks.defined()) {
    options.sinks = options.sinks.detach().to(type).set_requires_grad(true);
  }
  const at::Tensor expected = reference::attention(q, k, v, call.mask, options);
  expected.backward(dout);

  const at::NoGradGuard no_grad;
  const auto expect_close = [&](const char* name, const at::Tensor& actual, const at::Tensor& wanted) {
    const double difference = (actual - wanted).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * wanted.abs().max().item<double>()) << call.what << ", " << name;
  };
  const std::vector<int64_t> borders = {0, 50, 51, 130, kKeys};
  const auto stretch_at = [&](size_t i) {
    const auto part = [&](const at::Tensor& mask, int64_t begin, int64_t end) {
      return mask.defined() ? mask.narrow(1, begin, end - begin) : mask;
    };
    return AttentionStretch{
        .first_query = kKeys - kQueries,
        .first_key = borders[i],
        .causal = call.mask.causal,
        .query_documents = part(call.mask.document_ids, kKeys - kQueries, kKeys),
        .key_documents = part(call.mask.document_ids, borders[i], borders[i + 1]),
        .key_padding = part(call.mask.key_padding, borders[i], borders[i + 1])};
  };
  const auto keys_at = [&](const at::Tensor& x, size_t i) {
    return x.narrow(1, borders[i], borders[i + 1] - borders[i]);
  };
  AttentionPart whole = empty_attention_part(q, 5);
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    whole = merge(whole, attention_part(q, keys_at(k, i), keys_at(v, i), stretch_at(i), options));
  }
  if (options.sinks.defined()) {
    whole = with_sinks(whole, options.sinks);
  }
  expect_close("output", whole.output, expected);
  const at::Tensor products = (dout * whole.output).sum(-1);
  at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const auto added =
        attention_part_backward(dout, products, whole.lse, q, keys_at(k, i), keys_at(v, i), stretch_at(i), options);
    dq.add_(added.q);
    keys_at(dk, i).add_(added.k);
    keys_at(dv, i).add_(added.v);
  }
  expect_close("q", dq, q.grad());
  expect_close("k", dk, k.grad());
  expect_close("v", dv, v.grad());
  if (options.sinks.defined()) {
    expect_close("sinks", sinks_gradient(products, whole.lse, options.sinks), options.sinks.grad());
  }
}

TEST(AttentionParts, MergeToTheWholeWithGradients) {
  at::manual_seed(8);
  for (const Call& call : calls()) {
    expect_parts_join(call, at::kDouble, 1e-12);  // rounding of sums of some hundred terms
    expect_parts_join(call, at::kFloat, 1e-5);
  }
}

TEST(AttentionParts, ReportKeyRangesThatAreHiddenFromAllQueries) {
  const auto sees = [](int64_t first_query, int64_t first_key, std::optional<int64_t> window) {
    return AttentionStretch{.first_query = first_query, .first_key = first_key}.sees_any(4, 4, window);
  };
  EXPECT_TRUE(sees(4, 7, {})) << "the last query sees the first key";
  EXPECT_FALSE(sees(4, 8, {})) << "all keys are ahead";
  EXPECT_TRUE(sees(8, 0, 6)) << "query 8 sees key 3";
  EXPECT_FALSE(sees(8, 0, 5)) << "query 8 sees no further back than key 4";
}

}  // namespace
}  // namespace lehr::ops
