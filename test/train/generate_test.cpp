#include "lehr/train/generate.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

at::Tensor logits() {
  return at::tensor({0.0, 3.0, 1.0, 2.0}, at::kDouble);
}

TEST(SampleToken, TakesTheMostLikelyAtTemperatureZero) {
  EXPECT_EQ(sample_token(logits(), {.temperature = 0}, 0.99), 1);
}

TEST(SampleToken, DrawsInProportionToProbability) {
  std::map<int64_t, int> counts;
  for (int i = 0; i < 10000; ++i) {
    ++counts[sample_token(logits(), {}, (i + 0.5) / 10000)];
  }
  const at::Tensor expected = logits().softmax(0) * 10000;
  for (int64_t id = 0; id < 4; ++id) {
    EXPECT_NEAR(counts[id], expected[id].item<double>(), 1.5);  // the grid of 10,000 points leaves one either way
  }
}

TEST(SampleToken, KeepsToTopKAndTopP) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(sample_token(logits(), {.top_k = 2}, i / 100.0), ::testing::AnyOf(1, 3));
    EXPECT_EQ(sample_token(logits(), {.top_p = 0.1}, i / 100.0), 1);
  }
}

TEST(Generate, ContinuesWithTheCacheAsWithoutIt) {
  auto shape = testing::families().from_flavor("qwen3", "debugmodel");
  descriptor::ModelOverrides small;
  small.hidden_size = 16;
  small.intermediate_size = 24;
  small.num_hidden_layers = 2;
  small.num_attention_heads = 4;
  small.num_key_value_heads = 2;
  small.head_dim = 8;
  small.vocab_size = 50;
  small.initializer_range = 0.3;
  shape->apply(small);
  const auto model = shape->build({});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 3});
  model->eval();
  std::vector<int64_t> sequence{7, 11, 13};
  const auto generated = generate(*model, sequence, {.max_new_tokens = 20, .temperature = 0});
  ASSERT_EQ(generated.size(), 20U);
  at::NoGradGuard no_grad;
  for (const int64_t token : generated) {
    nn::ModelInputs inputs;
    inputs.input_ids = at::tensor(sequence, at::kLong).unsqueeze(0);
    const at::Tensor hidden = model->forward(inputs).hidden_states;
    const int64_t last = static_cast<int64_t>(sequence.size()) - 1;
    EXPECT_EQ(model->logits(hidden.narrow(1, last, 1)).argmax().item<int64_t>(), token);
    sequence.push_back(token);
  }
}

TEST(Generate, RefusesWhatDoesNotFit) {
  auto shape = testing::families().from_flavor("qwen3", "debugmodel");
  const auto model = shape->build({});
  EXPECT_THROW(generate(*model, {}, {}), Error);
  EXPECT_THROW(generate(*model, {1, 2, 3}, {.max_new_tokens = 8, .max_positions = 10}), Error);
}

}  // namespace
}  // namespace lehr::train
