// The variants of attention in known models, alone and combined, compared with a definition in plain ATen.
#include "lehr/nn/attention.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {
using test::expect_equal_to_definition;
using test::made;
using test::part;
using test::worst_error;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

const GroupedQueryAttentionParameters kPlain = {
    .hidden_size = 10, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 8};

// The variants of known models, and one with all options.
std::vector<std::pair<std::string, GroupedQueryAttentionParameters>> variants() {
  auto gptj = kPlain, phi = kPlain, qwen2 = kPlain, gpt_oss = kPlain, gemma2 = kPlain, gemma3 = kPlain, gemma4 = kPlain,
       qwen3_next = kPlain, no_positions = kPlain, olmo2 = kPlain, all = kPlain;
  gptj.rotary_style = RotaryStyle::interleaved;
  gptj.rotary_dim = 4;
  phi.rotary_dim = 2;
  phi.attention_bias = true;
  qwen2.attention_bias = true;
  qwen2.output_bias = false;
  gpt_oss.attention_bias = true;
  gpt_oss.sinks = true;
  gpt_oss.sliding_window = 4;
  gemma2.softcap = 2.5;
  gemma2.scale = 0.2;
  gemma2.sliding_window = 3;
  gemma3.qk_norm_eps = 1e-6;
  gemma3.qk_norm_weight = NormWeight::zero_centered;
  gemma4.qk_norm_eps = 1e-6;
  gemma4.attention_bias = true;  // of keys and values, which are the same
  gemma4.scale = 1;
  gemma4.keys_as_values = true;
  gemma4.v_norm_eps = 1e-2;
  qwen3_next = gemma3;
  qwen3_next.output_gate = true;
  qwen3_next.rotary_dim = 2;
  no_positions.rotary_dim = 0;
  no_positions.qk_norm_eps = 1e-5;
  olmo2.qk_norm_eps = 1e-3;
  olmo2.qk_norm_width = QKNormWidth::full;
  all = qwen3_next;
  all.rotary_style = RotaryStyle::interleaved;
  all.attention_bias = true;
  all.sinks = true;
  all.softcap = 2.0;
  all.sliding_window = 5;
  all.scale = 0.4;
  all.v_norm_eps = 1e-3;
  return {
      {"gptj", gptj},
      {"phi", phi},
      {"qwen2", qwen2},
      {"gpt-oss", gpt_oss},
      {"gemma2", gemma2},
      {"gemma3", gemma3},
      {"gemma4", gemma4},
      {"qwen3-next", qwen3_next},
      {"no positions", no_positions},
      {"olmo2", olmo2},
      {"all", all}};
}

PositionEmbeddings positions_for(const GroupedQueryAttentionParameters& params, int64_t tokens) {
  const int64_t dim = params.rotary_dim.value_or(params.head_dim);
  return dim == 0 ? PositionEmbeddings{} : test::positions(tokens, dim);
}

GroupedQueryAttention filled(const GroupedQueryAttentionParameters& params) {
  auto block = made(GroupedQueryAttention(params));
  at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : named_parameters(*block)) {
    at::Tensor value = parameter->value();
    value.add_(at::randn_like(value), 0.1);  // so that biases are not zero
  }
  return block;
}

at::Tensor rotated(const at::Tensor& x, const PositionEmbeddings& angles, RotaryStyle style) {
  if (!angles.first.defined()) {
    return x;
  }
  const int64_t dim = angles.first.size(-1);
  const at::Tensor cos = angles.first.unsqueeze(2).narrow(-1, 0, dim / 2);  // (1, T, 1, R / 2)
  const at::Tensor sin = angles.second.unsqueeze(2).narrow(-1, 0, dim / 2);
  const bool half = style == RotaryStyle::half;
  const at::Tensor a = half ? x.narrow(-1, 0, dim / 2) : x.slice(-1, 0, dim, 2);
  const at::Tensor b = half ? x.narrow(-1, dim / 2, dim / 2) : x.slice(-1, 1, dim, 2);
  const at::Tensor first = a * cos - b * sin, second = b * cos + a * sin;
  const at::Tensor turned = half ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
  return at::cat({turned, x.narrow(-1, dim, x.size(-1) - dim)}, -1);
}

// The norm of heads (B, T, heads, D): of each, or of all together if it has a weight for each of their elements.
at::Tensor normed(const at::Tensor& x, const RMSNorm& norm) {
  if (!norm) {
    return x;
  }
  if (norm->weight.size(0) != x.size(-1)) {
    const at::Tensor all = x.flatten(-2);
    return (all / (all.square().mean(-1, true) + norm->eps()).sqrt() * norm->weight).view_as(x);
  }
  const at::Tensor factor = norm->kind() == NormWeight::zero_centered ? norm->weight + 1 : norm->weight;
  return x / (x.square().mean(-1, true) + norm->eps()).sqrt() * factor;
}

// `sees` is bool (B, 1, T, T), the mask of the batch; causal order and window are applied here. `shown` (B, T) may be
// undefined; where it is false, the output of attention is zero.
at::Tensor definition(
    GroupedQueryAttentionImpl& block,
    const GroupedQueryAttentionParameters& p,
    const at::Tensor& x,
    const at::Tensor& sees,
    const at::Tensor& shown = {}) {
  const int64_t batch = x.size(0), tokens = x.size(1), group = p.num_attention_heads / p.num_key_value_heads;
  const auto heads_of = [&](Linear& projection, int64_t heads) {
    at::Tensor y = x.matmul(projection->weight.t());
    y = projection->bias.defined() ? y + projection->bias : y;
    return y.view({batch, tokens, heads, -1});
  };
  at::Tensor q = heads_of(block.q_proj, p.num_attention_heads), gate;
  if (p.output_gate) {
    gate = q.slice(-1, p.head_dim);
    q = q.slice(-1, 0, p.head_dim);
  }
  const auto angles = positions_for(p, tokens);
  q = rotated(normed(q, block.q_norm), angles, p.rotary_style);
  at::Tensor k = rotated(normed(heads_of(block.k_proj, p.num_key_value_heads), block.k_norm), angles, p.rotary_style);
  k = k.repeat_interleave(group, 2);
  at::Tensor v = heads_of(p.keys_as_values ? block.k_proj : block.v_proj, p.num_key_value_heads);
  if (p.v_norm_eps) {
    v = v / (v.square().mean(-1, true) + *p.v_norm_eps).sqrt();
  }
  v = v.repeat_interleave(group, 2);
  at::Tensor scores = at::einsum("bthd,bshd->bhts", {q, k});
  scores = scores * p.scale.value_or(std::pow(static_cast<double>(p.head_dim), -0.5));
  if (p.softcap) {
    scores = (scores / *p.softcap).tanh() * *p.softcap;
  }
  const at::Tensor at = at::arange(tokens);
  const at::Tensor distance = at.unsqueeze(1) - at;
  const at::Tensor near = (distance >= 0).logical_and(distance < p.sliding_window.value_or(tokens));
  scores = scores.masked_fill(near.logical_and(sees).logical_not(), -std::numeric_limits<double>::infinity());
  if (p.sinks) {
    scores = at::cat({scores, block.sinks.view({1, -1, 1, 1}).expand({batch, -1, tokens, 1})}, -1);
  }
  const at::Tensor weights = scores.softmax(-1).narrow(-1, 0, tokens);
  at::Tensor heads = at::einsum("bhts,bshd->bthd", {weights, v});
  heads = shown.defined() ? heads * shown.unsqueeze(-1).unsqueeze(-1) : heads;
  heads = p.output_gate ? heads * gate.sigmoid() : heads;
  const at::Tensor y = heads.reshape({batch, tokens, -1}).matmul(block.o_proj->weight.t());
  return block.o_proj->bias.defined() ? y + block.o_proj->bias : y;
}

TEST(AttentionVariants, EqualTheirDefinitionWithGradients) {
  at::manual_seed(1);
  for (const auto& [name, params] : variants()) {
    auto block = filled(params);
    const at::Tensor everything = at::ones({1, 1, 11, 11}, at::kBool);
    expect_equal_to_definition(
        name,
        *block,
        [&, p = params](const at::Tensor& x) { return block(x, positions_for(p, 11)); },
        [&, p = params](const at::Tensor& x) { return definition(*block, p, x, everything); },
        at::randn({2, 11, 10}, at::kDouble));
  }
}

TEST(AttentionVariants, KeepDocumentsAndPaddingApart) {
  at::manual_seed(2);
  const at::Tensor ids = at::tensor({0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2}).unsqueeze(0);
  at::Tensor padding = at::ones({2, 11}, at::kBool);
  padding[1].narrow(0, 8, 3).fill_(false);
  padding[1][7].fill_(false);
  const at::Tensor same = (ids.unsqueeze(1) == ids.unsqueeze(2)).unsqueeze(1);
  const at::Tensor real = padding.unsqueeze(1).unsqueeze(1);
  for (const auto& [name, params] : variants()) {
    auto block = filled(params);
    const auto check = [&, p = params](const std::string& what, const AttentionMask& mask, const at::Tensor& sees) {
      expect_equal_to_definition(
          what,
          *block,
          [&](const at::Tensor& x) { return block(x, positions_for(p, 11), mask); },
          [&](const at::Tensor& x) { return definition(*block, p, x, sees, mask.key_padding); },
          at::randn({2, 11, 10}, at::kDouble));
    };
    check(name + ", documents", {.document_ids = ids}, same);
    // A window may hide every key of a padded query, for which the definition's softmax is NaN, so windows are left
    // out.
    if (!params.sliding_window) {
      check(name + ", padding", {.key_padding = padding}, real);
    }
  }
}

TEST(AttentionVariants, DecodingWithACacheEqualsOneForward) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  for (const auto& [name, params] : variants()) {
    auto block = filled(params);
    const at::Tensor x = at::randn({2, 24, 10}, at::kDouble);
    const auto angles = positions_for(params, 24);
    const at::Tensor whole = block(x, angles);
    KeyValueCache cache;
    for (const auto& [first, count] : {std::pair{0, 7}, {7, 1}, {8, 1}, {9, 3}, {12, 1}, {13, 11}}) {
      const auto here = angles.first.defined() ? part(angles, first, count) : angles;
      const at::Tensor y = block->forward(x.narrow(1, first, count), here, {}, &cache);
      EXPECT_LE(worst_error(y, whole.narrow(1, first, count)), 1e-12) << name << ", token " << first;
    }
  }
}

TEST(AttentionVariants, RunInEveryType) {
  at::manual_seed(4);
  for (const auto& [name, params] : variants()) {
    auto block = filled(params);
    const at::Tensor x = at::randn({1, 40, 10}, at::kDouble);  // enough tokens for the fused kernel
    const at::Tensor exact = block(x, positions_for(params, 40));
    // Rounding of inputs and weights, amplified by the large weights of this test: some 16 units in the last place.
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 0.1}}) {
      for (const auto& [unused, parameter] : named_parameters(*block)) {
        parameter->show(parameter->value().to(type));
      }
      const at::Tensor y = block(x.to(type), positions_for(params, 40));
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_LE(worst_error(y, exact), tolerance) << name;
    }
  }
}

TEST(AttentionVariants, RefuseInvalidParametersByName) {
  const auto refused = [](const auto& change, const std::string& message) {
    GroupedQueryAttentionParameters params = kPlain;
    change(params);
    EXPECT_THAT([&] { GroupedQueryAttention{params}; }, Throws<Error>(Property(&Error::what, HasSubstr(message))));
  };
  refused(
      [](auto& p) { p.head_dim = 7; }, "head_dim: expected an even number, because the whole head is rotated, found 7");
  refused([](auto& p) { p.head_dim = 0; }, "head_dim: expected 1 or more, found 0");
  refused([](auto& p) { p.rotary_dim = 10; }, "rotary_dim: expected an even number from 0 to head_dim (8), found 10");
  refused([](auto& p) { p.rotary_dim = 3; }, "rotary_dim: expected an even number from 0 to head_dim (8), found 3");
  refused([](auto& p) { p.sliding_window = 0; }, "sliding_window: expected 1 or more tokens, found 0");
  refused([](auto& p) { p.softcap = -1; }, "softcap: expected a positive number, found -1");
  refused(
      [](auto& p) { p.qk_norm_weight = NormWeight::zero_centered; }, "has no effect without QK-norm; set qk_norm_eps");
  refused([](auto& p) { p.qk_norm_width = QKNormWidth::full; }, "qk_norm_width: has no effect without QK-norm");
  refused(
      [](auto& p) {
        p.qk_norm_eps = 1e-6;
        p.qk_norm_width = QKNormWidth::full;
        p.output_gate = true;
      },
      "would span its gates too (output_gate); use QKNormWidth::head");
  auto block = made(GroupedQueryAttention(kPlain));
  EXPECT_THAT(
      [&] {
        block(at::zeros({1, 3, 10}, at::kDouble), test::positions(3, 4));
      },
      Throws<Error>(Property(&Error::what, HasSubstr("expected angles of 8 elements, found 4"))));
}

}  // namespace
}  // namespace lehr::nn
