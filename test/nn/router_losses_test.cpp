// Router losses compared with their definitions in the papers, written for autograd.
#include "lehr/nn/router_losses.h"

#include <gtest/gtest.h>

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/moe.h"
#include "test/ops/watch_reads.h"

namespace lehr::nn {
namespace {

constexpr int64_t kExperts = 5;
constexpr int64_t kTopK = 2;

// Router logits (N, E) of several MoE layers. They are not close to 0, so that the z-loss is not either.
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

// E sum_e f_e P_e (Fedus et al., equation 4), where f_e is the mean number of a token's choices that are expert e. It
// is a count, so it has no gradient.
at::Tensor load_balancing_by_definition(const at::Tensor& logits) {
  const at::Tensor probabilities = logits.softmax(-1);
  const at::Tensor choices = choices_of(probabilities.detach()).to(at::kDouble);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int64_t e = 0; e < kExperts; ++e) {
    sum = sum + choices.select(1, e).mean() * probabilities.select(1, e).mean();
  }
  return static_cast<double>(kExperts) * sum;
}

// The mean over tokens of (log sum_e exp(x_e))^2 (Zoph et al., equation 5).
at::Tensor z_by_definition(const at::Tensor& logits) {
  return logits.exp().sum(-1).log().square().mean();
}

// Float64, and an equivalent formula: 1e-13 leaves room for some hundred roundings.
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
  const at::Tensor use = at::randn({kExperts}, at::kDouble);  // stands for the use of the probabilities in the model
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
  expect_near(output.detach(), expected.detach());  // neither router loss is part of the model's loss

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

TEST(RouterLosses, ScaleWithTheirCoefficientsAndTheShareOfTheStep) {
  expect_the_definitions({.load_balancing = 0.7, .z = 0.3, .share = 0.25});
}

// A model in two stages: the counts of the first stage are sent along with the activations, and the totals are sent
// back.
TEST(RouterLosses, OfTwoStagesEqualTheWholeModelWithoutHostReads) {
  const auto logits = random_logits();
  const RouterLossWeights weights{.load_balancing = 0.7, .z = 0.3};
  RouterLosses whole, first, second;
  const auto add = [](RouterLosses& losses, const at::Tensor& of_layer) {
    const at::Tensor probabilities = of_layer.detach().softmax(-1);
    losses.add(of_layer, probabilities, choices_of(probabilities).sum(0));
  };
  for (RouterLosses* losses : {&whole, &first, &second}) {
    losses->begin(weights);
  }
  for (const at::Tensor& of_layer : logits) {
    add(whole, of_layer);
  }
  add(first, logits[0]);
  add(second, logits[1]);
  add(second, logits[2]);
  RouterLosses::Forward forward;
  {
    const ops::test::WatchReads watch;
    second.add_packed(first.packed());
    forward = second.take();  // another micro-batch comes in between
    second.put(forward);
    first.set_totals(second.packed_totals());
  }
  EXPECT_TRUE(ops::test::WatchReads::reads().empty()) << ops::test::WatchReads::reads().front();
  for (RouterLosses* losses : {&first, &second}) {
    expect_near(losses->load_balancing_loss(), whole.load_balancing_loss());
    expect_near(losses->z_loss(), whole.z_loss());
    expect_near(losses->logit_gradient(logits[1].detach()), whole.logit_gradient(logits[1].detach()));
  }
}

// Of the seven rows of each layer.
at::Tensor is_token() {
  return at::tensor({1, 1, 0, 1, 1, 0, 0}).to(at::kBool);
}

// Adds layers of these logits, of which padding is left out, and returns the output of a model that does not use them.
at::Tensor add_padded(RouterLosses& losses, const std::vector<at::Tensor>& logits) {
  losses.set_token_mask(is_token().view({1, 7}));
  at::Tensor output = at::zeros({}, at::kDouble);
  for (const at::Tensor& of_layer : logits) {
    const at::Tensor probabilities = losses.attach(of_layer.softmax(-1), of_layer);
    const at::Tensor chosen = std::get<1>(probabilities.detach().topk(kTopK));
    losses.add(of_layer, probabilities, losses.count_choices(chosen, at::zeros({kExperts}, at::kLong)));
    output = output + 0 * probabilities.sum();
  }
  return output;
}

// Backward comes after another micro-batch, which has no padding.
TEST(RouterLosses, AreThoseOfTheTokensWithoutPadding) {
  const RouterLossWeights weights{.load_balancing = 0.7, .z = 0.3, .share = 0.25};
  const auto logits = random_logits();
  std::vector<at::Tensor> tokens;
  for (const at::Tensor& of_layer : logits) {
    const at::NoGradGuard no_grad;
    of_layer[2].fill_(100);  // would be most of either loss
    tokens.push_back(of_layer.index({is_token()}).requires_grad_(true));
  }
  RouterLosses losses;
  losses.begin(weights);
  const at::Tensor output = add_padded(losses, logits);
  const at::Tensor all = at::cat(tokens);
  const at::Tensor balance = load_balancing_by_definition(all);
  const at::Tensor z = z_by_definition(all);
  expect_near(losses.load_balancing_loss(), balance.detach());
  expect_near(losses.z_loss(), z.detach());

  const RouterLosses::Forward forward = losses.take();
  losses.begin(weights);
  losses.add(logits[1], logits[1].softmax(-1), choices_of(logits[1].detach()).sum(0));
  losses.put(forward);
  output.backward();
  (weights.share * (weights.load_balancing * balance + weights.z * z)).backward();
  for (size_t i = 0; i < logits.size(); ++i) {
    expect_near(logits[i].grad().index({is_token()}), tokens[i].grad());
    EXPECT_TRUE(logits[i].grad().index({is_token().logical_not()}).eq(0).all().item<bool>());
  }
}

TEST(RouterLosses, OfTwoStagesLeaveOutPaddingWithoutHostReads) {
  const auto logits = random_logits();
  const RouterLossWeights weights{.load_balancing = 0.7, .z = 0.3};
  RouterLosses whole, first, second, without_experts;
  for (RouterLosses* losses : {&whole, &first, &second, &without_experts}) {
    losses->begin(weights);
  }
  add_padded(whole, logits);
  {
    const ops::test::WatchReads watch;
    add_padded(first, {logits[0]});
    add_padded(second, {logits[1], logits[2]});
    second.add_packed(first.packed());
    without_experts.add_packed(second.packed());
    second.set_totals(without_experts.packed_totals());
    first.set_totals(second.packed_totals());
  }
  EXPECT_TRUE(ops::test::WatchReads::reads().empty()) << ops::test::WatchReads::reads().front();
  for (RouterLosses* losses : {&first, &second, &without_experts}) {
    expect_near(losses->load_balancing_loss(), whole.load_balancing_loss());
    expect_near(losses->z_loss(), whole.z_loss());
  }
  expect_near(first.logit_gradient(logits[0].detach()), whole.logit_gradient(logits[0].detach()));
}

// Ranks of context parallelism may have only padding, and so may the last micro-batch of a data set.
TEST(RouterLosses, OfPaddingAloneAreZero) {
  const auto logits = random_logits();
  RouterLosses losses;
  losses.begin({.load_balancing = 0.7, .z = 0.3, .share = 0});
  losses.set_token_mask(at::zeros({7}, at::kBool));
  const at::Tensor probabilities = losses.attach(logits[0].softmax(-1), logits[0]);
  losses.add(logits[0], probabilities, at::zeros({kExperts}, at::kLong));
  (0 * probabilities).sum().backward();
  EXPECT_EQ(losses.load_balancing_loss().item<double>(), 0);
  EXPECT_EQ(losses.z_loss().item<double>(), 0);
  EXPECT_TRUE(logits[0].grad().eq(0).all().item<bool>());
}

// A mask without padding gives the bits that no mask gives.
TEST(RouterLosses, OfSequencesWithoutPaddingHaveTheSameBitsWithAMask) {
  const auto logits = random_logits();
  std::vector<at::Tensor> values, gradients;
  for (const bool masked : {false, true}) {
    RouterLosses losses;
    losses.begin({.load_balancing = 0.7, .z = 0.3});
    losses.set_token_mask(masked ? at::ones({7}, at::kBool) : at::Tensor());
    for (const at::Tensor& of_layer : logits) {
      losses.add(of_layer, of_layer.softmax(-1), choices_of(of_layer.detach()).sum(0));
    }
    values.push_back(at::stack({losses.load_balancing_loss(), losses.z_loss()}));
    gradients.push_back(losses.logit_gradient(logits[0].detach()) + losses.probability_gradient(logits[0].detach()));
  }
  EXPECT_TRUE(at::equal(values[0], values[1]));
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

// An MoE layer with these losses, of weights 0.7 and 0.3.
MoELayer layer_with(const std::shared_ptr<RouterLosses>& losses) {
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
  layer->use_losses(losses);
  losses->begin({.load_balancing = 0.7, .z = 0.3});
  return layer;
}

// Expects the gradient of the layer's gate to be that of its losses alone for `tokens` (N, H). Returns their logits.
at::Tensor expect_gate_gradient(const MoELayer& layer, const at::Tensor& tokens) {
  const at::Tensor gate = layer->router->gate->weight.detach().clone().requires_grad_(true);
  const at::Tensor logits = at::matmul(tokens, gate.t());
  (0.7 * load_balancing_by_definition(logits) + 0.3 * z_by_definition(logits)).backward();
  expect_near(layer->router->gate->weight.grad(), gate.grad());
  return logits;
}

// A whole MoE layer whose output does not count in the loss: the gate's gradient is that of the router losses alone.
TEST(RouterLosses, HaveAGradientForTheGateOfAnMoELayer) {
  const auto losses = std::make_shared<RouterLosses>();
  MoELayer layer = layer_with(losses);
  const at::Tensor tokens = at::randn({9, 6}, at::kDouble);
  (0 * layer(tokens)).sum().backward();
  expect_gate_gradient(layer, tokens);
}

// The same of the tokens alone, recomputed in backward: neither run of the layer counts padding, and the second none.
TEST(RouterLosses, OfARecomputedMoELayerLeaveOutPadding) {
  const auto losses = std::make_shared<RouterLosses>();
  MoELayer layer = layer_with(losses);
  losses->set_token_mask(is_token());
  const at::Tensor hidden = at::randn({1, 7, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor output = checkpoint([layer](const at::Tensor& x) mutable { return layer(x); }, hidden);
  (0 * output).sum().backward();
  const at::Tensor logits = expect_gate_gradient(layer, hidden.detach()[0].index({is_token()}));
  EXPECT_TRUE(at::equal(layer->moe_tokens_per_expert(), choices_of(logits.detach()).sum(0)));
}

}  // namespace
}  // namespace lehr::nn
