// Master weights of a model whose backward comes in two halves.
#include "lehr/train/precision.h"

#include <gtest/gtest.h>

#include "lehr/nn/swiglu.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::train {
namespace {

TEST(MixedPrecision, CollectsGradientsThatCameInTwoHalves) {
  nn::SwiGLU block(4, 6);
  nn::materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 1});
  MixedPrecision precision(nn::named_parameters(*block), at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor x = at::randn({3, 4}, at::kBFloat16);
  const auto take = [&] {
    precision.collect_gradients();
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : nn::named_parameters(*block)) {
      at::Tensor value = parameter->value();
      EXPECT_EQ(value.grad().scalar_type(), at::kFloat) << name;
      gradients.push_back(value.grad());
      value.mutable_grad().reset();
    }
    return gradients;
  };
  block(x).square().sum().backward();
  const auto expected = take();
  const auto halves = std::make_shared<ops::WeightGradients>();
  at::Tensor loss;
  {
    const ops::WeightGradients::Scope scope(halves);
    loss = block(x).square().sum();
  }
  halves->backward_input({loss});
  EXPECT_EQ(halves->size(), 3U);
  halves->backward_weight();
  const auto found = take();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

}  // namespace
}  // namespace lehr::train
