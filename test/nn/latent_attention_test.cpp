// Multi-head latent attention against a definition in plain ATen.
#include "lehr/nn/latent_attention.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {
using test::expect_equal_to_definition;
using test::made;
using test::part;
using test::positions;
using test::worst_error;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

const MultiHeadLatentAttentionParameters kPlain = {
    .hidden_size = 12,
    .num_attention_heads = 3,
    .kv_lora_rank = 10,
    .qk_nope_head_dim = 6,
    .qk_rope_head_dim = 4,
    .v_head_dim = 5};

std::vector<MultiHeadLatentAttentionParameters> variants() {
  auto with_query_latent = kPlain, all = kPlain;
  with_query_latent.q_lora_rank = 7;
  all.q_lora_rank = 9;
  all.attention_bias = true;
  all.scale = 0.5;
  all.rotary_style = RotaryStyle::half;
  all.v_head_dim = 14;
  return {kPlain, with_query_latent, all};
}

at::Tensor normed(const at::Tensor& x, RMSNorm& norm) {
  return x / (x.square().mean(-1, true) + norm->eps()).sqrt() * norm->weight;
}

at::Tensor rotated(const at::Tensor& x, const PositionEmbeddings& angles, RotaryStyle style) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor cos = angles.first.unsqueeze(2).narrow(-1, 0, half);
  const at::Tensor sin = angles.second.unsqueeze(2).narrow(-1, 0, half);
  // Scores do not depend on the order of the elements, so the rotated pairs of both styles are stored in sequence.
  const bool interleaved = style == RotaryStyle::interleaved;
  const at::Tensor a = interleaved ? x.slice(-1, 0, {}, 2) : x.narrow(-1, 0, half);
  const at::Tensor b = interleaved ? x.slice(-1, 1, {}, 2) : x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor definition(
    MultiHeadLatentAttentionImpl& block,
    const MultiHeadLatentAttentionParameters& p,
    const at::Tensor& x,
    const at::Tensor& sees) {
  const int64_t batch = x.size(0), tokens = x.size(1), heads = p.num_attention_heads;
  const auto project = [](const at::Tensor& input, Linear& projection) {
    const at::Tensor y = input.matmul(projection->weight.t());
    return projection->bias.defined() ? y + projection->bias : y;
  };
  const auto angles = positions(tokens, p.qk_rope_head_dim);
  at::Tensor q = p.q_lora_rank ? project(normed(project(x, block.q_a_proj), block.q_a_layernorm), block.q_b_proj)
                               : project(x, block.q_proj);
  q = q.view({batch, tokens, heads, -1});
  q = at::cat(
      {q.slice(-1, 0, p.qk_nope_head_dim), rotated(q.slice(-1, p.qk_nope_head_dim), angles, p.rotary_style)}, -1);
  const at::Tensor compressed = project(x, block.kv_a_proj_with_mqa);
  const at::Tensor latent = normed(compressed.slice(-1, 0, p.kv_lora_rank), block.kv_a_layernorm);
  const at::Tensor shared = rotated(compressed.slice(-1, p.kv_lora_rank).unsqueeze(2), angles, p.rotary_style);
  const at::Tensor kv = project(latent, block.kv_b_proj).view({batch, tokens, heads, -1});
  const at::Tensor k = at::cat({kv.slice(-1, 0, p.qk_nope_head_dim), shared.expand({-1, -1, heads, -1})}, -1);
  const double scale = p.scale.value_or(std::pow(static_cast<double>(q.size(-1)), -0.5));
  const at::Tensor causal = at::ones({tokens, tokens}, at::kBool).tril();
  const at::Tensor scores =
      (at::einsum("bthd,bshd->bhts", {q, k}) * scale)
          .masked_fill(causal.logical_and(sees).logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor y = at::einsum("bhts,bshd->bthd", {scores.softmax(-1), kv.slice(-1, p.qk_nope_head_dim)});
  return project(y.reshape({batch, tokens, -1}), block.o_proj);
}

TEST(MultiHeadLatentAttention, EqualsItsDefinitionWithGradientsAndDocuments) {
  at::manual_seed(1);
  const at::Tensor ids = at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 2}).unsqueeze(0);
  const at::Tensor same = (ids.unsqueeze(1) == ids.unsqueeze(2)).unsqueeze(1);
  for (const auto& params : variants()) {
    auto block = made(MultiHeadLatentAttention(params));
    const auto angles = positions(9, params.qk_rope_head_dim);
    const at::Tensor x = at::randn({2, 9, 12}, at::kDouble);
    expect_equal_to_definition(
        "plain",
        *block,
        [&](const at::Tensor& input) { return block(input, angles); },
        [&](const at::Tensor& input) { return definition(*block, params, input, at::ones({1}, at::kBool)); },
        x);
    expect_equal_to_definition(
        "documents",
        *block,
        [&](const at::Tensor& input) { return block(input, angles, AttentionMask{.document_ids = ids}); },
        [&](const at::Tensor& input) { return definition(*block, params, input, same); },
        x);
  }
}

TEST(MultiHeadLatentAttention, DecodingFromCachedLatentsEqualsOneForward) {
  at::NoGradGuard no_grad;
  at::manual_seed(2);
  for (const auto& params : variants()) {
    auto block = made(MultiHeadLatentAttention(params));
    const at::Tensor x = at::randn({2, 24, 12}, at::kDouble);
    const auto angles = positions(24, params.qk_rope_head_dim);
    at::Tensor padding = at::ones({2, 24}, at::kBool);
    padding[1].narrow(0, 1, 2).fill_(false);
    const at::Tensor whole = block(x, angles, AttentionMask{.key_padding = padding});
    KeyValueCache cache;
    for (const auto& [first, count] : {std::pair{0, 7}, {7, 1}, {8, 3}, {11, 13}}) {
      const AttentionMask mask = {.key_padding = padding.narrow(1, 0, first + count)};
      const at::Tensor y = block->forward(x.narrow(1, first, count), part(angles, first, count), mask, &cache);
      EXPECT_LE(worst_error(y, whole.narrow(1, first, count)), 1e-12) << "token " << first;
    }
  }
}

TEST(MultiHeadLatentAttention, RunsInEveryType) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  for (const auto& params : variants()) {
    auto block = made(MultiHeadLatentAttention(params));
    const at::Tensor x = at::randn({1, 40, 12}, at::kDouble);  // enough tokens for the fused kernel
    const auto angles = positions(40, params.qk_rope_head_dim);
    const at::Tensor exact = block(x, angles);
    // Rounding of inputs and weights, amplified by the large weights of this test: some 16 units in the last place.
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 0.1}}) {
      for (const auto& [unused, parameter] : named_parameters(*block)) {
        parameter->show(parameter->value().to(type));
      }
      EXPECT_LE(worst_error(block(x.to(type), angles), exact), tolerance);
      KeyValueCache cache;
      block->forward(x.narrow(1, 0, 39).to(type), part(angles, 0, 39), {}, &cache);
      const at::Tensor last = block->forward(x.narrow(1, 39, 1).to(type), part(angles, 39, 1), {}, &cache);
      EXPECT_EQ(last.scalar_type(), type);
      EXPECT_LE(worst_error(last, exact.narrow(1, 39, 1)), 2 * tolerance);
    }
  }
}

TEST(MultiHeadLatentAttention, RefusesInvalidParametersByName) {
  const auto refused = [](const auto& change, const std::string& message) {
    MultiHeadLatentAttentionParameters params = kPlain;
    change(params);
    EXPECT_THAT([&] { MultiHeadLatentAttention{params}; }, Throws<Error>(Property(&Error::what, HasSubstr(message))));
  };
  refused([](auto& p) { p.qk_rope_head_dim = 3; }, "qk_rope_head_dim: expected an even number, found 3");
  refused([](auto& p) { p.q_lora_rank = 0; }, "q_lora_rank: expected 1 or more, found 0");
  refused([](auto& p) { p.v_head_dim = -1; }, "v_head_dim: expected 1 or more, found -1");
  auto block = made(MultiHeadLatentAttention(kPlain));
  EXPECT_THAT(
      [&] {
        block(at::zeros({1, 3, 12}, at::kDouble), positions(3, 10));
      },
      Throws<Error>(Property(&Error::what, HasSubstr("angles of qk_rope_head_dim = 4 elements, found 10"))));
}

}  // namespace
}  // namespace lehr::nn
