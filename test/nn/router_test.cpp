// Routers of every kind, compared with their definition, token by token and group by group.
#include "lehr/nn/router.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"

namespace lehr::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

constexpr int64_t kHidden = 6, kExperts = 12, kTokens = 40;

struct Case {
  std::string name;
  int64_t top_k;
  bool renormalize, bias;
  RouterOptions options;
};

const std::vector<Case> kCases{
    {"Softmax", 3, true, false, {}},
    {"SoftmaxScaled", 3, false, true, {.routed_scaling_factor = 1.7}},
    {"SoftmaxOfBiasedLogits", 4, true, false, {.gate_bias = true}},
    {"SoftmaxInGroups", 4, true, false, {.n_group = 4, .topk_group = 2}},
    {"Sigmoid", 2, false, false, {.score = RouterScore::sigmoid}},
    {"SigmoidNormalized", 3, true, true, {.score = RouterScore::sigmoid, .norm_eps = 0.25}},
    {"DeepSeek",
     5,
     true,
     true,
     {.score = RouterScore::sigmoid, .n_group = 4, .topk_group = 2, .norm_eps = 1e-20, .routed_scaling_factor = 2.5}},
    {"AllGroups", 4, true, true, {.score = RouterScore::sigmoid, .n_group = 3, .topk_group = 3}},
    {"OneOfSixGroups", 2, true, true, {.score = RouterScore::sigmoid, .n_group = 6, .topk_group = 1}},
    {"Gemma4", 3, true, false, {.input_norm_eps = 0.1, .per_expert_scale = true}},
    {"FactorsOfBiasedExperts", 3, true, true, {.norm_eps = 0.25, .per_expert_scale = true}}};

TopKRouter made(const Case& one) {
  TopKRouter router(TopKRouterParameters{
      .hidden_size = kHidden,
      .num_experts = kExperts,
      .top_k = one.top_k,
      .renormalize_probabilities = one.renormalize,
      .enable_expert_bias = one.bias,
      .options = one.options,
      .init = Init::normal(0.7)});
  materialize(*router, at::kCPU, at::kDouble);
  router->reset_parameters({.seed = 3});
  const at::NoGradGuard no_grad;
  if (one.options.gate_bias) {
    router->gate->bias.copy_(at::linspace(-0.9, 0.8, kExperts).roll(3));
  }
  if (one.bias) {
    router->expert_bias.copy_(at::linspace(0.3, -0.4, kExperts).roll(5));
  }
  if (one.options.input_norm_eps) {
    router->scale.copy_(at::linspace(0.5, 4, kHidden).roll(2));
  }
  if (one.options.per_expert_scale) {
    router->per_expert_scale.copy_(at::linspace(-0.5, 2, kExperts).roll(4));
  }
  return router;
}

// The indices of the `count` largest values, largest first.
std::vector<size_t> best(const std::vector<double>& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

// The experts of a token with these scores, by the definition.
std::vector<size_t> chosen_by_definition(const Case& one, const at::Tensor& scores, const at::Tensor& bias) {
  std::vector<double> liked;
  for (int64_t e = 0; e < kExperts; ++e) {
    liked.push_back(scores[e].item<double>() + (one.bias ? bias[e].item<double>() : 0));
  }
  const auto width = static_cast<size_t>(kExperts / one.options.n_group);
  std::vector<double> of_groups;
  for (size_t first = 0; first < liked.size(); first += width) {
    std::vector<double> members(
        liked.begin() + static_cast<long>(first), liked.begin() + static_cast<long>(first + width));
    const auto two = best(members, 2);
    of_groups.push_back(members[two[0]] + members[two[1]]);
  }
  const auto groups = best(of_groups, static_cast<size_t>(one.options.topk_group));
  for (size_t e = 0; e < liked.size(); ++e) {
    if (std::find(groups.begin(), groups.end(), e / width) == groups.end()) {
      liked[e] = -1e9;
    }
  }
  return best(liked, static_cast<size_t>(one.top_k));
}

// What the gate reads.
at::Tensor input_by_definition(const Case& one, const at::Tensor& tokens, const at::Tensor& scale) {
  if (!one.options.input_norm_eps) {
    return tokens;
  }
  const at::Tensor rms = (tokens.square().mean(-1, true) + *one.options.input_norm_eps).sqrt();
  return tokens / rms * scale / std::sqrt(static_cast<double>(kHidden));
}

at::Tensor scores_by_definition(const Case& one, const at::Tensor& logits) {
  const at::Tensor powers = at::exp(logits);
  return one.options.score == RouterScore::softmax ? powers / powers.sum(-1, true) : powers / (1 + powers);
}

class Router : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Router, ::testing::ValuesIn(kCases), [](const auto& one) { return one.param.name; });

// Rounding of float64.
TEST_P(Router, EqualsItsDefinitionWithGradients) {
  const Case& one = GetParam();
  TopKRouter router = made(one);
  at::manual_seed(4);
  const at::Tensor tokens = at::randn({kTokens, kHidden}, at::kDouble);
  const at::Tensor factors = at::randn({kTokens, one.top_k}, at::kDouble);
  const RoutingResult found = router(tokens);
  (found.selected_probabilities * factors).sum().backward();

  const at::Tensor gate = router->gate->weight.detach().clone().requires_grad_(true);
  const at::Tensor shift =
      one.options.gate_bias ? router->gate->bias.detach().clone().requires_grad_(true) : at::zeros({}, at::kDouble);
  const auto own = [](const at::Tensor& parameter, int64_t size) {
    return (parameter.defined() ? parameter.detach().clone() : at::ones({size}, at::kDouble)).requires_grad_(true);
  };
  const at::Tensor scale = own(router->scale, kHidden), of_experts = own(router->per_expert_scale, kExperts);
  const at::Tensor input = input_by_definition(one, tokens, scale);
  const at::Tensor scores = scores_by_definition(one, at::matmul(input, gate.t()) + shift);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto experts = chosen_by_definition(one, scores[t], router->expert_bias);
    at::Tensor total = at::full({}, one.options.norm_eps, at::kDouble);
    for (const size_t e : experts) {
      total = total + scores[t][static_cast<int64_t>(e)];
    }
    for (size_t k = 0; k < experts.size(); ++k) {
      const auto place = static_cast<int64_t>(k), e = static_cast<int64_t>(experts[k]);
      ASSERT_EQ(found.selected_expert_indices[t][place].item<int64_t>(), e) << "token " << t << ", choice " << k;
      at::Tensor weight = one.renormalize ? scores[t][e] / total : scores[t][e];
      weight = weight * one.options.routed_scaling_factor * of_experts[e];
      EXPECT_NEAR(found.selected_probabilities[t][place].item<double>(), weight.item<double>(), 1e-12);
      sum = sum + weight * factors[t][place];
    }
  }
  sum.backward();
  EXPECT_LT((router->gate->weight.grad() - gate.grad()).abs().max().item<double>(), 1e-11);
  if (one.options.gate_bias) {
    EXPECT_LT((router->gate->bias.grad() - shift.grad()).abs().max().item<double>(), 1e-11);
  }
  if (one.options.input_norm_eps) {
    EXPECT_LT((router->scale.grad() - scale.grad()).abs().max().item<double>(), 1e-11);
  }
  if (one.options.per_expert_scale) {
    EXPECT_LT((router->per_expert_scale.grad() - of_experts.grad()).abs().max().item<double>(), 1e-11);
  }
}

// The losses are of scores that are divided by their sum, and leave the routing as it is.
TEST_P(Router, HasTheGradientsOfRouterLosses) {
  const Case& one = GetParam();
  TopKRouter router = made(one);
  at::manual_seed(6);
  const at::Tensor tokens = at::randn({kTokens, kHidden}, at::kDouble);
  const RoutingResult plain = router(tokens);
  RouterLosses losses;
  losses.begin({.load_balancing = 0.7, .z = 0.3});
  const RoutingResult found = router(tokens, &losses);
  const at::Tensor counts = at::bincount(found.selected_expert_indices.flatten(), {}, kExperts);
  losses.add(found.logits, found.probabilities, counts);
  (0 * found.selected_probabilities).sum().backward();
  EXPECT_TRUE(at::equal(found.selected_expert_indices, plain.selected_expert_indices));
  EXPECT_TRUE(at::allclose(found.selected_probabilities, plain.selected_probabilities, 1e-13, 1e-15));

  const at::Tensor gate = router->gate->weight.detach().clone().requires_grad_(true);
  const at::Tensor input = input_by_definition(one, tokens, router->scale).detach();
  const at::Tensor product = at::matmul(input, gate.t());
  const at::Tensor logits = one.options.gate_bias ? product + router->gate->bias.detach() : product;
  const at::Tensor scores = scores_by_definition(one, logits);
  const at::Tensor probabilities = scores / scores.sum(-1, true);
  const at::Tensor balance = kExperts * (counts.to(at::kDouble) / kTokens * probabilities.mean(0)).sum();
  const at::Tensor z = at::logsumexp(logits, -1).square().mean();
  EXPECT_NEAR(losses.load_balancing_loss().item<double>(), balance.item<double>(), 1e-12);
  (0.7 * balance + 0.3 * z).backward();
  EXPECT_LT((router->gate->weight.grad() - gate.grad()).abs().max().item<double>(), 1e-12);
}

TEST(RouterParameters, AreRefusedByName) {
  const auto expect_refused = [](int64_t top_k, const RouterOptions& options, const std::string& message) {
    const Case one{"", top_k, true, false, options};
    EXPECT_THAT([&] { made(one); }, Throws<Error>(Property(&Error::what, HasSubstr(message)))) << message;
  };
  expect_refused(13, {}, "num_experts_per_tok: expected 1 to num_experts (12), found 13");
  expect_refused(2, {.n_group = 5}, "n_group: expected a divisor of the number of experts (12)");
  expect_refused(2, {.n_group = 12}, "with two experts or more in each group, found 12");
  expect_refused(2, {.n_group = 4, .topk_group = 5}, "topk_group: expected 1 to n_group (4), found 5");
  expect_refused(
      4, {.n_group = 4, .topk_group = 1}, "expected at most the 3 experts of topk_group = 1 groups, found 4");
  expect_refused(4, {.routed_scaling_factor = 0}, "routed_scaling_factor: expected a positive number, found 0");
}

}  // namespace
}  // namespace lehr::nn
