// Router losses against their definitions in the papers, written out for autograd.
#include "lehr/nn/router_losses.h"

#include <gtest/gtest.h>

#include "lehr/nn/moe.h"

namespace lehr::nn {
namespace {

constexpr int64_t kExperts = 5;
constexpr int64_t kTopK = 2;

// The logits (N, E) of the routers of some MoE layers. They are far from 0, so that the z-loss is too.
std::vector<at::Tensor> random_logits() {
  std::vector<at::Tensor> logits;
  for (const int64_t tokens : {7, 7, 7}) {
    logits.push_back((2 * at::randn({tokens, kExperts}, at::kDouble) + 1).requires_grad_(true));
  }
  return logits;
}

at::Tensor choices_of(const at::Tensor& probabilities) {
  return at::one_hot(std::get<1>(probabilities.topk(kTopK)), kExperts).sum(1);  // (N, E)
}

// E sum_e f_e P_e (Fedus et al., equation 4), where f_e is the mean number of a token's choices that are e: it is
// counted, and so has no gradient.
at::Tensor load_balancing_by_definition(const at::Tensor& logits) {
  const at::Tensor probabilities = logits.softmax(-1);
  const at::Tensor choices = choices_of(probabilities.detach()).to(at::kDouble);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int64_t e = 0; e < kExperts; ++e) {
    sum = sum + choices.select(1, e).mean() * probabilities.select(1, e).mean();
  }
  return static_cast<double>(kExperts) * sum;
}

// The mean of (log sum_e exp(x_e))^2 over tokens (Zoph et al., equation 5).
at::Tensor z_by_definition(const at::Tensor& logits) {
  return logits.exp().sum(-1).log().square().mean();
}

// Float64 and the same formula in other words: 1e-13 leaves room for some hundred roundings.
void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
  EXPECT_TRUE(at::allclose(found, wanted, /*rtol=*/1e-13, /*atol=*/1e-15)) << found << " instead of " << wanted;
}

void expect_the_definitions(const RouterLossWeights& weights) {
  const auto logits = random_logits();
  std::vector<at::Tensor> same;
  RouterLosses losses;
  losses.begin(weights);
  at::Tensor output = at::zeros({}, at::kDouble);
  at::Tensor expected = at::zeros({}, at::kDouble);
  const at::Tensor use = at::randn({kExperts}, at::kDouble);  // what the model makes of probabilities
  for (const at::Tensor& of_layer : logits) {
    const at::Tensor probabilities = losses.attach(of_layer.softmax(-1), of_layer);
    losses.add(of_layer, probabilities, choices_of(probabilities.detach()).sum(0));
    output = output + at::mv(probabilities, use).square().sum();

    same.push_back(of_layer.detach().clone().requires_grad_(true));
    expected = expected + at::mv(same.back().softmax(-1), use).square().sum();
  }
  const at::Tensor all = at::cat(same);
  const at::Tensor balance = load_balancing_by_definition(all);
  const at::Tensor z = z_by_definition(all);
  expect_near(losses.load_balancing_loss(), balance.detach());
  expect_near(losses.z_loss(), z.detach());
  expect_near(output.detach(), expected.detach());  // neither is part of the model's loss

  output.backward();
  (expected + weights.share * (weights.load_balancing * balance + weights.z * z)).backward();
  for (size_t i = 0; i < logits.size(); ++i) {
    expect_near(logits[i].grad(), same[i].grad());
  }
}

TEST(RouterLosses, LoadBalancingHasTheGradientOfItsDefinition) {
  expect_the_definitions({.load_balancing = 0.7});
}

TEST(RouterLosses, ZLossHasTheGradientOfItsDefinition) {
  expect_the_definitions({.z = 0.3});
}

TEST(RouterLosses, BothCountByTheirCoefficientsAndTheShareOfTheStep) {
  expect_the_definitions({.load_balancing = 0.7, .z = 0.3, .share = 0.25});
}

// Through a whole MoE layer, whose output does not count here: the gate's gradient is that of the losses alone.
TEST(RouterLosses, ReachTheGateOfAnMoELayer) {
  MoELayer layer(MoEParameters{
      .hidden_size = 6,
      .intermediate_size = 4,
      .num_experts = kExperts,
      .top_k = kTopK,
      .renormalize_probabilities = true,
      .shared_expert = {},
      .init = Init::normal(0.7)});
  materialize(*layer, at::kCPU, at::kDouble);
  layer->reset_parameters({.seed = 3});
  const auto losses = std::make_shared<RouterLosses>();
  layer->use_losses(losses);
  losses->begin({.load_balancing = 0.7, .z = 0.3});
  const at::Tensor tokens = at::randn({9, 6}, at::kDouble);
  (0 * layer(tokens)).sum().backward();

  const at::Tensor gate = layer->router->gate->weight.detach().clone().requires_grad_(true);
  const at::Tensor logits = at::matmul(tokens, gate.t());
  (0.7 * load_balancing_by_definition(logits) + 0.3 * z_by_definition(logits)).backward();
  expect_near(layer->router->gate->weight.grad(), gate.grad());
}

}  // namespace
}  // namespace lehr::nn
