#include "test/nn/blocks.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/head.h"
#include "lehr/nn/hidden_states_aggregator.h"
#include "lehr/nn/swiglu.h"
#include "lehr/ops/cuda.h"
#include "test/ops/host_launch.h"

namespace lehr::nn {
namespace {
using test::made;
using test::positions;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

// The definition of attention, one query at a time; in float64, so only rounding (1e-12) is left.
at::Tensor naive_attention(
    GroupedQueryAttentionImpl& block,
    const at::Tensor& x,
    const PositionEmbeddings& rope,
    int64_t heads,
    int64_t kv_heads,
    int64_t dim) {
  const at::Tensor& cos = rope.first;
  const at::Tensor& sin = rope.second;
  const int64_t batch = x.size(0), tokens = x.size(1);
  auto rotate = [&](const at::Tensor& v, int64_t t) {
    const at::Tensor turned = at::cat({-v.narrow(0, dim / 2, dim / 2), v.narrow(0, 0, dim / 2)});
    return v * cos[0][t] + turned * sin[0][t];
  };
  auto norm = [](const at::Tensor& v, RMSNorm& n) {
    return n ? v * at::rsqrt(v.square().mean() + n->eps()) * n->weight : v;
  };
  const at::Tensor q = at::linear(x, block.q_proj->weight).view({batch, tokens, heads, dim});
  const at::Tensor k = at::linear(x, block.k_proj->weight).view({batch, tokens, kv_heads, dim});
  const at::Tensor v = at::linear(x, block.v_proj->weight).view({batch, tokens, kv_heads, dim});
  at::Tensor out = at::zeros({batch, tokens, heads, dim}, at::kDouble);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<at::Tensor> scores;
        for (int64_t s = 0; s <= t; ++s) {
          scores.push_back(
              rotate(norm(q[b][t][h], block.q_norm), t).dot(rotate(norm(k[b][s][kv], block.k_norm), s)) /
              std::sqrt(static_cast<double>(dim)));
        }
        const at::Tensor p = at::stack(scores).softmax(0);
        for (int64_t s = 0; s <= t; ++s) {
          out[b][t][h] += p[s] * v[b][s][kv];
        }
      }
    }
  }
  return at::linear(out.view({batch, tokens, heads * dim}), block.o_proj->weight);
}

TEST(GroupedQueryAttention, EqualsItsDefinition) {
  at::NoGradGuard no_grad;
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{4, 2}, std::pair{4, 1}}) {
    for (const bool qk_norm : {false, true}) {
      auto block = made(GroupedQueryAttention(GroupedQueryAttentionParameters{
          .hidden_size = 10,
          .num_attention_heads = heads,
          .num_key_value_heads = kv_heads,
          .head_dim = 6,
          .qk_norm_eps = qk_norm ? std::optional(1e-6) : std::nullopt}));
      const at::Tensor x = at::randn({2, 5, 10}, at::kDouble);
      const auto rope = positions(5, 6);
      EXPECT_TRUE(at::allclose(block(x, rope), naive_attention(*block, x, rope, heads, kv_heads, 6), 1e-10, 1e-12));
    }
  }
}

TEST(GroupedQueryAttention, PackedDocumentsEqualEachAlone) {
  at::NoGradGuard no_grad;
  auto block = made(GroupedQueryAttention(GroupedQueryAttentionParameters{
      .hidden_size = 8, .num_attention_heads = 2, .num_key_value_heads = 1, .head_dim = 4, .qk_norm_eps = 1e-6}));
  const at::Tensor x = at::randn({1, 7, 8}, at::kDouble);
  const at::Tensor packed_positions = at::tensor({0, 1, 2, 0, 1, 2, 3}).unsqueeze(0);
  const auto rope = RotaryEmbeddingProvider(100.0, 4)(packed_positions, at::kDouble);
  AttentionMask mask;
  mask.document_ids = at::tensor({0, 0, 0, 1, 1, 1, 1}).unsqueeze(0);
  const at::Tensor packed = block(x, rope, mask);
  EXPECT_TRUE(at::allclose(packed.narrow(1, 0, 3), block(x.narrow(1, 0, 3), positions(3, 4)), 1e-12, 1e-13));
  EXPECT_TRUE(at::allclose(packed.narrow(1, 3, 4), block(x.narrow(1, 3, 4), positions(4, 4)), 1e-12, 1e-13));
}

TEST(GroupedQueryAttention, DecodingWithACacheEqualsOneForward) {
  at::NoGradGuard no_grad;
  auto block = made(GroupedQueryAttention(GroupedQueryAttentionParameters{
      .hidden_size = 8, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 4, .qk_norm_eps = 1e-6}));
  const at::Tensor x = at::randn({2, 70, 8}, at::kDouble);  // more than the cache's initial size
  const auto rope = positions(70, 4);
  const at::Tensor whole = block(x, rope);
  KeyValueCache cache;
  for (int64_t t = 0; t < 70; t += t == 0 ? 3 : 1) {
    const int64_t count = t == 0 ? 3 : 1;
    const PositionEmbeddings here{rope.first.narrow(1, t, count), rope.second.narrow(1, t, count)};
    EXPECT_TRUE(
        at::allclose(block->forward(x.narrow(1, t, count), here, {}, &cache), whole.narrow(1, t, count), 1e-10, 1e-12));
  }
  EXPECT_EQ(cache.length(), 70);
}

// The cache forgets what no later token sees, whether tokens come one by one, several at once or after padding.
TEST(GroupedQueryAttention, AWindowBoundsItsCache) {
  at::NoGradGuard no_grad;
  constexpr int64_t kTokens = 400, kWindow = 40;
  auto block = made(GroupedQueryAttention(GroupedQueryAttentionParameters{
      .hidden_size = 8, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 4, .sliding_window = kWindow}));
  const at::Tensor x = at::randn({2, kTokens, 8}, at::kDouble);
  const auto rope = positions(kTokens, 4);
  const at::Tensor whole = block(x, rope);
  for (const int64_t prompt : {3, 40, 300}) {
    KeyValueCache cache;
    const auto next = [&](int64_t first, int64_t count, int64_t padding) {
      const PositionEmbeddings here{
          rope.first.narrow(1, first, count + padding), rope.second.narrow(1, first, count + padding)};
      const at::Tensor y = block->forward(x.narrow(1, first, count + padding), here, {}, &cache);
      cache.truncate(first + count);
      EXPECT_TRUE(at::allclose(y.narrow(1, 0, count), whole.narrow(1, first, count), 1e-10, 1e-12)) << first;
    };
    next(0, prompt, 5);
    for (int64_t t = prompt; t < kTokens - 4; t += t % 7 == 0 ? 3 : 1) {
      next(t, t % 7 == 0 ? 3 : 1, 1);
      const int64_t bytes_of_token = 2 * 2 * 2 * 4 * 8;  // keys and values of two rows, two heads of four float64
      if (t > prompt + 5) {                              // then the memory of a long prompt and its padding is full
        EXPECT_LE(cache.bytes(), 2 * (kWindow + 3) * bytes_of_token) << t << " after a prompt of " << prompt;
      }
    }
    EXPECT_GE(cache.length(), kTokens - 4);
  }
}

// Masks are those of all keys, also of the ones that are left behind.
TEST(GroupedQueryAttention, AWindowsCacheTakesMasksOfAllKeys) {
  at::NoGradGuard no_grad;
  auto block = made(GroupedQueryAttention(GroupedQueryAttentionParameters{
      .hidden_size = 8, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 4, .sliding_window = 4}));
  const at::Tensor x = at::randn({2, 12, 8}, at::kDouble);
  const auto rope = positions(12, 4);
  const at::Tensor documents = at::tensor({0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}).unsqueeze(0);
  AttentionMask mask;
  mask.document_ids = documents;
  const at::Tensor whole = block(x, rope, mask);
  KeyValueCache cache;
  for (int64_t t = 0; t < 12; ++t) {
    mask.document_ids = documents.narrow(1, 0, t + 1);
    const PositionEmbeddings here{rope.first.narrow(1, t, 1), rope.second.narrow(1, t, 1)};
    EXPECT_TRUE(
        at::allclose(block->forward(x.narrow(1, t, 1), here, mask, &cache), whole.narrow(1, t, 1), 1e-10, 1e-12));
  }
}

// The CPU's fused tiles take 16 or more queries in float32. Tolerance: rounding of float32.
TEST(GroupedQueryAttention, AWindowsCacheContinuesWithManyTokensOfDocuments) {
  at::NoGradGuard no_grad;
  auto block = made(
      GroupedQueryAttention(GroupedQueryAttentionParameters{
          .hidden_size = 8, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 4, .sliding_window = 4}),
      at::kFloat);
  constexpr int64_t kTokens = 44, kFirst = 12;
  const at::Tensor x = at::randn({2, kTokens, 8});
  const auto rope = positions(kTokens, 4, at::kFloat);
  const at::Tensor documents = at::arange(kTokens).div(9, "floor").unsqueeze(0).repeat({2, 1});
  const auto mask_of = [&](int64_t tokens) {
    AttentionMask mask;
    mask.document_ids = documents.narrow(1, 0, tokens);
    return with_cumulative_lengths(mask, 2);
  };
  const at::Tensor whole = block(x, rope, mask_of(kTokens));
  KeyValueCache cache;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : {std::pair(int64_t{0}, kFirst), std::pair(kFirst, kTokens)}) {
    const PositionEmbeddings here{rope.first.narrow(1, begin, end - begin), rope.second.narrow(1, begin, end - begin)};
    parts.push_back(block->forward(x.narrow(1, begin, end - begin), here, mask_of(end), &cache));
  }
  EXPECT_TRUE(at::allclose(at::cat(parts, 1), whole, 1e-4, 1e-5));
}

TEST(GroupedQueryAttention, RefusesHeadsThatDoNotDivideEvenly) {
  EXPECT_THAT(
      [] {
        GroupedQueryAttention(GroupedQueryAttentionParameters{
            .hidden_size = 8, .num_attention_heads = 3, .num_key_value_heads = 2, .head_dim = 4});
      },
      Throws<Error>(Property(&Error::what, HasSubstr("num_attention_heads (3)"))));
}

// d9d's golden frequencies: base 10000, 8 dimensions.
TEST(Rotary, ScalesFrequenciesLikeThePublishedMethods) {
  auto check = [](const RopeScaling& scaling, std::vector<double> expected, double mscale) {
    const auto found = rotary_frequencies(scaling, 10000, 8, 0);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found.inverse_frequencies[i], expected[i], 1e-6);
    }
    EXPECT_NEAR(found.attention_scaling, mscale, 1e-7);
  };
  check(NoRopeScaling{}, {1, .1, .01, .001}, 1);
  check(LinearRopeScaling{4}, {.25, .025, .0025, .00025}, 1);
  YarnRopeScaling yarn{.factor = 4, .original_max_position_embeddings = 4096, .truncate = false};
  check(yarn, {1, .1, .006557, .00025}, 1.1386294);
  // Wavelengths below 1024 / 4 are unchanged, those above 1024 are multiplied by 8. The third one, 628, is
  // interpolated.
  const Llama3RopeScaling llama{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 1024};
  check(llama, {1, .1, .00308676, .000125}, 1);
  check(ProportionalRopeScaling{.factor = 2, .partial_rotary_factor = 0.7}, {.5, .05, 0, 0}, 1);
}

TEST(Rotary, DynamicScalingBeginsBeyondTheTrainedLength) {
  const DynamicNtkRopeScaling ntk{.factor = 2, .original_max_position_embeddings = 16};
  const auto plain = rotary_frequencies(NoRopeScaling{}, 100, 8, 0).inverse_frequencies;
  EXPECT_EQ(rotary_frequencies(ntk, 100, 8, 16).inverse_frequencies, plain);
  EXPECT_LT(rotary_frequencies(ntk, 100, 8, 17).inverse_frequencies[1], plain[1]);
}

TEST(Rotary, KeepsAnglesInAtLeastFloat32) {
  const RotaryEmbeddingProvider provider(10000.0, 8);
  const at::Tensor far = at::tensor({100000}).unsqueeze(0);
  EXPECT_EQ(provider(far, at::kBFloat16).first.scalar_type(), at::kFloat);
  EXPECT_NEAR(provider(far, at::kBFloat16).first[0][0][0].item<double>(), std::cos(100000.0), 1e-7);
  EXPECT_EQ(provider(far, at::kDouble).first.scalar_type(), at::kDouble);
}

TEST(Checkpoint, HasTheSameGradientsAndRunsTheBlockTwice) {
  auto block = made(SwiGLU(4, 6));
  for (const bool input_needs_grad : {true, false}) {
    const at::Tensor x = at::randn({3, 4}, at::kDouble);
    auto run = [&](bool recompute) {
      for (const auto& [name, parameter] : named_parameters(*block)) {
        at::Tensor value = parameter->value();
        value.mutable_grad().reset();
      }
      int runs = 0;
      const at::Tensor input = x.clone().set_requires_grad(input_needs_grad);
      auto body = [&](const at::Tensor& t) {
        ++runs;
        return block(t);
      };
      (recompute ? checkpoint(body, input) : body(input)).square().sum().backward();
      EXPECT_EQ(runs, recompute ? 2 : 1);
      std::vector<at::Tensor> gradients;
      if (input_needs_grad) {
        gradients.push_back(input.grad());
      }
      for (const auto& [name, parameter] : named_parameters(*block)) {
        gradients.push_back(parameter->value().grad());
      }
      return gradients;
    };
    const auto kept = run(false);
    const auto again = run(true);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(at::equal(kept[i], again[i]));
    }
  }
}

TEST(Checkpoint, RunsTheBlockOnceWithoutGradMode) {
  at::NoGradGuard no_grad;
  int runs = 0;
  checkpoint([&](const at::Tensor& t) { return ++runs, t; }, at::ones({1}));
  EXPECT_EQ(runs, 1);
}

TEST(Embedding, SplitVocabularyEqualsOneTable) {
  const SplitVocabulary split{{{"base", 5}, {"added", 3}}, {"base", "added"}};
  auto parts = made(SplitTokenEmbeddings(split, 4));
  const at::Tensor whole =
      at::cat({parts->segments[0]->weight, parts->segments[1]->weight}).detach().set_requires_grad(true);
  const at::Tensor ids = at::tensor({0, 4, 5, 7, 5}).unsqueeze(0);
  const at::Tensor found = parts(ids);
  const at::Tensor expected = at::embedding(whole, ids);
  EXPECT_TRUE(at::equal(found, expected));
  found.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::equal(at::cat({parts->segments[0]->weight.grad(), parts->segments[1]->weight.grad()}), whole.grad()));
}

TEST(Embedding, NamesIdsOutsideTheVocabulary) {
  auto table = made(SplitTokenEmbeddings(SplitVocabulary{{{"default", 5}}, {"default"}}, 4));
  EXPECT_THAT(
      [&] {
        table(at::tensor({1, 5}).unsqueeze(0));
      },
      Throws<Error>(Property(&Error::what, HasSubstr("expected ids from 0 to 4, found 1 to 5"))));
  EXPECT_THROW((SplitVocabulary{{{"a", 1}}, {"b"}}.size()), Error);
}

// As on a GPU: ids below and above the vocabulary read row 0; the error follows later, and only where gradients are
// recorded.
TEST(Embedding, NotesIdsOutsideTheVocabularyOnAGpu) {
  auto table = made(SplitTokenEmbeddings(SplitVocabulary{{{"base", 5}, {"added", 3}}, {"base", "added"}}, 4));
  EXPECT_FALSE(table->unknown_ids().defined());
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  const at::Tensor found = table(at::tensor({1, 7, 8, -1}).view({2, 2}));
  EXPECT_TRUE(at::equal(found, table(at::tensor({1, 7, 0, 0}).view({2, 2}))));
  EXPECT_TRUE(at::equal(table->unknown_ids(), at::tensor({3, 8}, at::kLong)));
  const at::Tensor note = table->unknown_ids().clone();
  const auto complaint = Throws<Error>(
      Property(&Error::what, HasSubstr("input_ids: expected ids from 0 to 7, found 8 at place 2 of a batch's ids")));
  EXPECT_THAT([&] { table->require_known_ids(note); }, complaint);
  EXPECT_TRUE(table->unknown_ids().eq(0).all().item<bool>()) << "told once";
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW(table(at::tensor({1, 7}).unsqueeze(0)));
  EXPECT_THAT([&] { table(at::tensor({1, 7, 8}).unsqueeze(0)); }, complaint);
}

TEST(LanguageModellingHead, ReturnsTheLossOfEachLabelOverAllSegments) {
  const SplitVocabulary split{{{"base", 5}, {"added", 3}}, {"base", "added"}};
  auto head = made(SplitLanguageModellingHead(split, 4));
  const at::Tensor hidden = at::randn({2, 3, 4}, at::kDouble);
  const at::Tensor labels = at::tensor({0, 7, -100, 5, -100, 2}, at::kLong).view({2, 3});
  const at::Tensor expected =
      at::cross_entropy_loss(head->logits(hidden).view({6, 8}), labels.view(-1), {}, at::Reduction::None, kIgnoreIndex);
  EXPECT_TRUE(at::allclose(head(hidden, labels).view(-1), expected, 1e-10, 1e-12));
  EXPECT_THROW(head(hidden, labels.view(-1)), Error);
}

TEST(ClassificationHead, PoolsMarkedTokensAndDropoutDependsOnTheStepOnly) {
  auto head = made(ClassificationHead(64, 3, 0.5));
  const at::Tensor hidden = at::ones({2, 3, 64}, at::kDouble);
  const at::Tensor mask = at::tensor({0, 0, 1, 0, 1, 0}).view({2, 3});
  head->eval();
  EXPECT_TRUE(at::allclose(head(hidden, mask)[0], at::linear(hidden[0][2], head->score->weight)));
  EXPECT_EQ(head(hidden).sizes(), (std::vector<int64_t>{2, 3, 3}));
  head->train();
  head->set_dropout_stream(1, 1);
  const at::Tensor first = head(hidden, mask);
  EXPECT_FALSE(at::equal(first, head(hidden, mask))) << "the next call draws anew";
  head->set_dropout_stream(1, 1);
  EXPECT_TRUE(at::equal(first, head(hidden, mask)));
  head->set_dropout_stream(1, 2);
  EXPECT_FALSE(at::equal(first, head(hidden, mask)));
  head->set_dropout_stream(1, 1, /*first_row=*/1);
  EXPECT_TRUE(at::equal(first.narrow(0, 1, 1), head(hidden.narrow(0, 1, 1), mask.narrow(0, 1, 1))))
      << "a row alone has the mask that it has among others";
  EXPECT_THROW(head(hidden, mask.view(-1)), Error);
  EXPECT_THROW(ClassificationHead(4, 2, 1.0), Error);
}

TEST(ClassificationHead, AddsABiasThatBeginsAtZero) {
  auto head = made(ClassificationHead(8, 3, 0, Init::normal(0.02), /*bias=*/true));
  const at::Tensor hidden = at::randn({2, 4, 8}, at::kDouble);
  EXPECT_TRUE(at::equal(head->score->bias, at::zeros({3}, at::kDouble)));
  const at::Tensor bias = at::tensor({1.0, -2.0, 3.0}, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    head->score->own_parameter("bias")->value().detach().copy_(bias);
  }
  EXPECT_TRUE(at::allclose(head(hidden), at::matmul(hidden, head->score->weight.t()) + bias, 1e-14));
}

TEST(ClassificationHead, ChunksOfASequenceHaveTheDropoutMaskOfTheWholeOne) {
  auto head = made(ClassificationHead(16, 16, 0.5));
  const at::Tensor hidden = at::ones({2, 8, 16}, at::kDouble);
  head->train();
  head->set_dropout_stream(3, 1);
  const at::Tensor whole = head(hidden);
  head->set_sequence_chunks({0, 3});
  head->set_dropout_stream(3, 1);
  const at::Tensor part = head(hidden.narrow(1, 0, 4));
  EXPECT_TRUE(at::equal(part.narrow(1, 0, 2), whole.narrow(1, 0, 2)));
  EXPECT_TRUE(at::equal(part.narrow(1, 2, 2), whole.narrow(1, 6, 2)));
  EXPECT_FALSE(at::equal(part.narrow(1, 2, 2), whole.narrow(1, 2, 2)));
}

// The head's weight is the identity, so the scores are the pooled tokens.
TEST(ClassificationHead, DropoutScalesTheElementsThatItKeeps) {
  auto head = made(ClassificationHead(64, 64, 0.75));
  {
    const at::NoGradGuard no_grad;
    head->score->own_parameter("weight")->value().detach().copy_(at::eye(64, at::kDouble));
  }
  head->train();
  const at::Tensor pooled = head(at::ones({2, 3, 64}, at::kDouble));
  EXPECT_TRUE(pooled.eq(0).logical_or(pooled.eq(4)).all().item<bool>());
  EXPECT_TRUE(pooled.eq(4).any().item<bool>());
}

TEST(HiddenStatesAggregator, AveragesOverTheMaskAndAppendsToTheSnapshot) {
  const at::Tensor mask = at::tensor({1, 1, 0, 0, 0, 0}).view({2, 3});
  HiddenStatesAggregator aggregator(HiddenStatesAggregationMode::mean, mask);
  const at::Tensor hidden = at::arange(12, at::kDouble).view({2, 3, 2});
  aggregator.add_hidden_states(hidden);
  const at::Tensor packed = aggregator.pack_with_snapshot(at::full({1, 2, 2}, 7.0, at::kDouble));
  EXPECT_EQ(packed.sizes(), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_TRUE(at::equal(packed[0], at::full({2, 2}, 7.0, at::kDouble)));
  EXPECT_TRUE(at::equal(packed[1][0], at::tensor({1.0, 2.0}, at::kDouble)));
  EXPECT_TRUE(
      at::equal(packed[1][1], at::zeros({2}, at::kDouble)));  // a sequence without tokens does not divide by zero
  EXPECT_THROW(HiddenStatesAggregator(HiddenStatesAggregationMode::mean, {}), Error);
}

}  // namespace
}  // namespace lehr::nn
