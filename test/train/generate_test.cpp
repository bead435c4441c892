#include "lehr/train/generate.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

at::Tensor logits() {
  return at::tensor({0.0, 3.0, 1.0, 2.0}, at::kDouble);
}

TEST(SampleToken, PicksTheMostLikelyAtTemperatureZero) {
  EXPECT_EQ(sample_token(logits(), {.temperature = 0}, 0.99), 1);
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
  at::Tensor broken = logits();
  broken[2] = std::numeric_limits<double>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THAT(
        [&] { sample_token(broken, {.temperature = temperature}, 0.5); },
        ::testing::ThrowsMessage<Error>(::testing::HasSubstr("generate: a logit is nan")));
  }
  at::Tensor masked = logits();
  masked[0] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(sample_token(masked, {.temperature = 0}, 0.5), 1) << "a token that is excluded";
}

TEST(SampleToken, DrawsInProportionToProbability) {
  std::map<int64_t, int> counts;
  for (int i = 0; i < 10000; ++i) {
    ++counts[sample_token(logits(), {}, (i + 0.5) / 10000)];
  }
  const at::Tensor expected = logits().softmax(0) * 10000;
  for (int64_t id = 0; id < 4; ++id) {
    EXPECT_NEAR(counts[id], expected[id].item<double>(), 1.5);  // the grid of 10,000 points may be off by one
  }
}

TEST(SampleToken, RestrictsToTopKAndTopP) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(sample_token(logits(), {.top_k = 2}, i / 100.0), ::testing::AnyOf(1, 3));
    EXPECT_EQ(sample_token(logits(), {.top_p = 0.1}, i / 100.0), 1);
    EXPECT_THAT(sample_token(logits(), {.top_p = 0.8}, i / 100.0), ::testing::AnyOf(1, 3));  // 0.64 and 0.24
  }
  EXPECT_EQ(sample_token(logits(), {.top_p = 0.8}, 0.99), 3) << "the token that reaches top_p is kept";
}

// The reference checkpoints in float64, with weights large enough that every layer has a visible effect.
std::shared_ptr<nn::Model> model_of(const std::string& reference) {
  const auto shape =
      testing::families().from_hf_folder(std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / reference);
  descriptor::ModelOverrides large;
  large.initializer_range = 0.3;
  shape->apply(large);
  auto model = shape->build({});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 3});
  model->eval();
  return model;
}

at::Tensor logits_of(nn::Model& model, const at::Tensor& ids, nn::KeyValueCaches* caches = nullptr) {
  const at::NoGradGuard no_grad;
  nn::ModelInputs inputs;
  inputs.input_ids = ids;
  inputs.caches = caches;
  return model.logits(model.forward(inputs).hidden_states);  // (B, T, V)
}

// Dense, with experts in every second layer, and with Llama 3's scaled rotary frequencies.
class Families : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Generate,
    Families,
    ::testing::Values("qwen3_tied_v4config", "qwen3moe_sparse_step2", "llama_rope_llama3"),
    [](const auto& reference) { return std::string(reference.param); });

// The rounding of sums in another order is at most 1e-12 of the largest logit.
TEST_P(Families, LogitsWithACacheEqualThoseOfTheWholeSequence) {
  const auto model = model_of(GetParam());
  at::manual_seed(5);
  const at::Tensor ids = at::randint(80, {2, 100}, at::kLong);  // more than the 64 positions of a new cache
  const at::Tensor whole = logits_of(*model, ids);
  nn::KeyValueCaches caches(static_cast<size_t>(model->num_local_layers()));
  for (const auto& [first, count] : {std::pair{0, 7}, {7, 1}, {8, 1}, {9, 40}, {49, 1}, {50, 30}, {80, 20}}) {
    const at::Tensor found = logits_of(*model, ids.narrow(1, first, count), &caches);
    const double error = (found - whole.narrow(1, first, count)).abs().max().item<double>();
    EXPECT_LE(error, 1e-12 * whole.abs().max().item<double>()) << "token " << first;
  }
  EXPECT_EQ(caches.front().length(), 100);
}

// Greedy and sampled: each token is the one that the logits of the whole sequence determine.
TEST_P(Families, GenerateTheSameTokensWithAndWithoutACache) {
  const auto model = model_of(GetParam());
  for (const double temperature : {0.0, 1.0}) {
    std::vector<int64_t> sequence{7, 11, 13};
    const SamplingOptions options{.max_new_tokens = 70, .temperature = temperature, .seed = 9};
    const auto generated = generate(*model, sequence, options);
    ASSERT_EQ(generated.size(), 70U);
    EXPECT_GT(std::set<int64_t>(generated.begin(), generated.end()).size(), 3U) << "a constant shows little";
    const RandomStream stream(options.seed, "generate");
    for (size_t i = 0; i < generated.size(); ++i) {
      const at::Tensor logits = logits_of(*model, at::tensor(sequence, at::kLong).unsqueeze(0));
      ASSERT_EQ(generated[i], sample_token(logits[0][-1], options, stream.uniform(i))) << "token " << i;
      sequence.push_back(generated[i]);
    }
  }
}

// There is no sliding window: a sequence ends with the model's positions, and longer requests are refused.
TEST(Generate, UsesAllPositionsOfTheModelAndRefusesMore) {
  const auto model = model_of("qwen3_tied_v4config");
  EXPECT_EQ(generate(*model, {1, 2, 3}, {.max_new_tokens = 7, .max_positions = 10}).size(), 7U);
  EXPECT_THAT(
      [&] {
        generate(*model, {1, 2, 3}, {.max_new_tokens = 8, .max_positions = 10});
      },
      ::testing::ThrowsMessage<Error>(
          ::testing::HasSubstr("prompt: 3 tokens and 8 new tokens exceed the model's 10 positions")));
  EXPECT_THAT(
      [&] { generate(*model, {}, {}); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("prompt: expected at least one token, found none")));
}

}  // namespace
}  // namespace lehr::train
