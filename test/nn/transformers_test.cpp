// Attention blocks and the load-balancing loss, compared with results of Hugging Face transformers for the same values
// (test/data/nn).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numbers>
#include <sstream>

#include "lehr/nn/latent_attention.h"
#include "lehr/nn/router_losses.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {

constexpr int64_t kTokens = 7, kHidden = 8;

using Numbers = std::map<std::string, std::vector<double>>;

Numbers numbers_of(const std::string& which) {
  std::ifstream file(std::string(LEHR_SOURCE_DIR) + "/test/data/nn/transformers_blocks.txt");
  Numbers numbers;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, quantity;
    words >> name >> quantity;
    for (double value = 0; name == which && words >> value;) {
      numbers[quantity].push_back(value);
    }
  }
  return numbers;
}

at::Tensor wave(int64_t count, double step, double phase = 0) {
  return (at::arange(count, at::kDouble) * step + phase).sin();
}

// Initializes the block as the script does; compares output and gradients with the numbers of the file.
template <class Holder>
void expect_as_in_transformers(const std::string& which, Holder block, int64_t rotated) {
  const Numbers expected = numbers_of(which);
  materialize(*block, at::kCPU, at::kDouble);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(*block)) {
    parameters[name] = parameter->value();
  }
  double k = 0;
  for (auto& [name, value] : parameters) {
    at::NoGradGuard no_grad;
    value.copy_(0.5 * wave(value.numel(), 0.7, k++).view_as(value));
  }
  at::Tensor x = wave(kTokens * kHidden, 0.3, std::numbers::pi / 2).view({1, kTokens, kHidden});
  x.set_requires_grad(true);
  const at::Tensor y = block->forward(x, test::positions(kTokens, rotated));
  (y.flatten() * wave(y.numel(), 0.9)).sum().backward();

  // Sums of some hundred terms; in gradients many of them cancel.
  const at::Tensor output = at::tensor(expected.at("output"), at::kDouble);
  EXPECT_LE(test::worst_error(y.flatten(), output), 1e-12);
  parameters["input"] = x;
  EXPECT_EQ(expected.size(), parameters.size() + 1) << "the same parameters under the same names";
  for (const auto& [name, value] : parameters) {
    const double found = (value.grad().flatten() * wave(value.numel(), 1.1)).sum().template item<double>();
    EXPECT_NEAR(
        found, expected.at(name).front(), 1e-12 * std::max(1.0, value.grad().abs().sum().template item<double>()))
        << which << ", " << name;
  }
}

const GroupedQueryAttentionParameters kGrouped = {
    .hidden_size = kHidden, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 8};

TEST(Transformers, GlmRotatesTheFirstHalfOfAHeadInterleaved) {
  auto glm = kGrouped;
  glm.attention_bias = true;
  glm.output_bias = false;
  glm.rotary_style = RotaryStyle::interleaved;
  glm.rotary_dim = 4;
  expect_as_in_transformers("glm", GroupedQueryAttention(glm), 4);
}

TEST(Transformers, GptOssHasSinksAndWindows) {
  auto gpt_oss = kGrouped;
  gpt_oss.attention_bias = true;
  gpt_oss.sinks = true;
  gpt_oss.sliding_window = 3;
  expect_as_in_transformers("gpt_oss", GroupedQueryAttention(gpt_oss), 8);
}

TEST(Transformers, Gemma2SoftcapsItsScores) {
  auto gemma2 = kGrouped;
  gemma2.sliding_window = 4;
  gemma2.softcap = 1.5;
  gemma2.scale = 1 / std::sqrt(5.0);
  expect_as_in_transformers("gemma2", GroupedQueryAttention(gemma2), 8);
}

TEST(Transformers, Qwen3NextGatesItsOutput) {
  auto qwen3_next = kGrouped;
  qwen3_next.qk_norm_eps = 1e-6;
  qwen3_next.qk_norm_weight = NormWeight::zero_centered;
  qwen3_next.output_gate = true;
  qwen3_next.rotary_dim = 2;
  expect_as_in_transformers("qwen3_next", GroupedQueryAttention(qwen3_next), 2);
}

TEST(Transformers, DeepseekV3UsesLatentAttention) {
  MultiHeadLatentAttentionParameters deepseek = {
      .hidden_size = kHidden,
      .num_attention_heads = 4,
      .kv_lora_rank = 5,
      .qk_nope_head_dim = 6,
      .qk_rope_head_dim = 4,
      .v_head_dim = 7,
      .attention_bias = true};
  expect_as_in_transformers("deepseek_v3_without_q_lora", MultiHeadLatentAttention(deepseek), 4);
  deepseek.q_lora_rank = 9;
  deepseek.scale = std::pow(yarn_mscale(4, 1), 2) / std::sqrt(10.0);
  expect_as_in_transformers("deepseek_v3", MultiHeadLatentAttention(deepseek), 4);
}

// Its load_balancing_loss_func with an attention mask.
TEST(Transformers, LeavesPaddingOutOfTheLoadBalancingLoss) {
  const Numbers expected = numbers_of("load_balancing");
  const at::Tensor mask = at::tensor({1, 1, 1, 1, 0, 0, 0, 1, 1, 1}).to(at::kBool).view({2, 5});
  RouterLosses losses;
  losses.begin({.load_balancing = 1});
  losses.set_token_mask(mask);
  std::vector<at::Tensor> logits;
  at::Tensor output = at::zeros({}, at::kDouble);
  for (int k = 0; k < 3; ++k) {
    logits.push_back((2 * wave(50, 0.8, k)).view({10, 5}).requires_grad_(true));
    const at::Tensor probabilities = losses.attach(logits.back().softmax(-1), logits.back());
    const at::Tensor chosen = std::get<1>(probabilities.detach().topk(2));
    losses.add(logits.back(), probabilities, losses.count_choices(chosen, at::zeros({5}, at::kLong)));
    output = output + 0 * probabilities.sum();
  }
  output.backward();
  EXPECT_NEAR(losses.load_balancing_loss().item<double>(), expected.at("loss").front(), 1e-14);
  for (size_t k = 0; k < logits.size(); ++k) {
    const at::Tensor gradient = at::tensor(expected.at("logits." + std::to_string(k)), at::kDouble).view({10, 5});
    EXPECT_TRUE(at::allclose(logits[k].grad(), gradient, /*rtol=*/1e-13, /*atol=*/1e-16)) << "layer " << k;
  }
}

}  // namespace
}  // namespace lehr::nn
