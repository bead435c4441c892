// Checkpointed blocks whose backward is split into dgrad and wgrad.
#include "lehr/ops/weight_gradients.h"

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {

using ops::WeightGradients;
using test::made;

std::map<std::string, at::Tensor> take_gradients(const Module& module) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, parameter] : named_parameters(module)) {
    at::Tensor value = parameter->value();
    gradients[name] = value.grad();
    value.mutable_grad().reset();
  }
  return gradients;
}

TEST(CheckpointSplitBackward, RunsABlockTwiceAndHasTheSameBits) {
  at::manual_seed(1);
  auto block = made(SwiGLU(4, 6));
  const at::Tensor x = at::randn({3, 4}, at::kDouble);
  for (const bool input_needs_grad : {true, false}) {
    const at::Tensor input = x.clone().set_requires_grad(input_needs_grad);
    block(input).square().sum().backward();
    const at::Tensor input_gradient = input.grad();
    input.mutable_grad().reset();
    const auto expected = take_gradients(*block);

    int runs = 0;
    const auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor output;
    {
      const WeightGradients::Scope scope(wgrads);
      output = checkpoint([&](const at::Tensor& t) { return ++runs, block(t); }, input).square().sum();
    }
    EXPECT_EQ(runs, 1);
    const auto other = std::make_shared<WeightGradients>();
    const WeightGradients::Scope scope(other);  // of the micro-batch whose forward comes next on this thread
    wgrads->backward_input({output});
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(wgrads->size(), 3U);
    EXPECT_EQ(other->size(), 0U);
    if (input_needs_grad) {
      EXPECT_TRUE(at::equal(input.grad(), input_gradient));
    }
    for (const auto& [name, parameter] : named_parameters(*block)) {
      EXPECT_FALSE(parameter->value().grad().defined()) << name;
    }
    wgrads->backward_weight();
    EXPECT_EQ(runs, 2);
    for (const auto& [name, gradient] : take_gradients(*block)) {
      EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name;
    }
  }
}

// The block computes wgrad immediately in a full backward, and if its WeightGradients object no longer exists.
TEST(CheckpointSplitBackward, DefersNothingInAFullBackward) {
  auto block = made(SwiGLU(4, 6));
  const at::Tensor x = at::randn({3, 4}, at::kDouble);
  block(x).square().sum().backward();
  const auto expected = take_gradients(*block);
  for (const bool alive : {true, false}) {
    auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor output;
    {
      const WeightGradients::Scope scope(wgrads);
      output = checkpoint([&](const at::Tensor& t) { return block(t); }, x).square().sum();
    }
    if (!alive) {
      wgrads.reset();
    }
    output.backward();
    for (const auto& [name, gradient] : take_gradients(*block)) {
      EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name << alive;
    }
  }
}

TEST(CheckpointSplitBackward, CountsTokensOfAnMoELayerOnce) {
  at::manual_seed(2);
  auto mixture = made(MoELayer(MoEParameters{
      .hidden_size = 6,
      .intermediate_size = 5,
      .num_experts = 4,
      .top_k = 2,
      .shared_expert = SharedExpertParameters{.intermediate_size = 4, .enable_gate = true}}));
  const at::Tensor x = at::randn({1, 7, 6}, at::kDouble).set_requires_grad(true);
  mixture(x).square().sum().backward();
  const auto expected = take_gradients(*mixture);
  mixture->reset_moe_stats();
  const auto wgrads = std::make_shared<WeightGradients>();
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = checkpoint([&](const at::Tensor& t) { return mixture(t); }, x).square().sum();
  }
  wgrads->backward_input({output});
  EXPECT_EQ(wgrads->size(), 8U) << "router, three of the experts, four of the shared expert";
  wgrads->backward_weight();
  EXPECT_EQ(mixture->moe_tokens_per_expert().sum().item<int64_t>(), 14);
  for (const auto& [name, gradient] : take_gradients(*mixture)) {
    EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name;
  }
}

}  // namespace
}  // namespace lehr::nn
