#include "lehr/nn/moe.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "lehr/base/error.h"
#include "lehr/nn/activation_checkpoint.h"

namespace lehr::nn {
namespace {

MoEParameters small(int64_t experts, int64_t top_k, bool renormalize) {
  return {
      .hidden_size = 6,
      .intermediate_size = 5,
      .num_experts = experts,
      .top_k = top_k,
      .renormalize_probabilities = renormalize,
      .init = Init::normal(0.7)};
}

MoELayer made(const MoEParameters& parameters) {
  MoELayer layer(parameters);
  materialize(*layer, at::kCPU, at::kDouble);
  layer->reset_parameters({.seed = 3});
  return layer;
}

// The definition: each token goes through each of its experts.
at::Tensor by_definition(MoELayer& layer, const at::Tensor& hidden, int64_t top_k, bool renormalize) {
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
  const at::Tensor probabilities = at::linear(tokens, layer->router->gate->weight).softmax(-1);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    auto [chosen, experts] = probabilities[t].topk(top_k);
    if (renormalize) {
      chosen = chosen / chosen.sum();
    }
    at::Tensor sum = at::zeros_like(tokens[t]);
    for (int64_t k = 0; k < top_k; ++k) {
      const auto e = experts[k].item<int64_t>();
      const at::Tensor x = tokens[t];
      const at::Tensor inner = at::silu(at::mv(layer->grouped_experts->gate_proj->weight[e], x)) *
                               at::mv(layer->grouped_experts->up_proj->weight[e], x);
      sum = sum + chosen[k] * at::mv(layer->grouped_experts->down_proj->weight[e], inner);
    }
    rows.push_back(sum);
  }
  return at::stack(rows).view(hidden.sizes());
}

TEST(MoELayer, EqualsItsDefinitionWithGradients) {
  for (const bool renormalize : {true, false}) {
    // 16 experts for 14 tokens, so some get no token.
    auto layer = made(small(16, 3, renormalize));
    auto reference = made(small(16, 3, renormalize));
    at::manual_seed(4);
    const at::Tensor hidden = at::randn({2, 7, 6}, at::kDouble).set_requires_grad(true);
    const at::Tensor hidden_ref = hidden.detach().clone().set_requires_grad(true);
    const at::Tensor grad = at::randn({2, 7, 6}, at::kDouble);
    const at::Tensor output = layer(hidden);
    const at::Tensor expected = by_definition(reference, hidden_ref, 3, renormalize);
    EXPECT_TRUE(at::allclose(output, expected, 1e-12, 1e-12));
    output.backward(grad);
    expected.backward(grad);
    EXPECT_TRUE(at::allclose(hidden.grad(), hidden_ref.grad(), 1e-11, 1e-12));
    const auto ours = named_parameters(*layer);
    const auto theirs = named_parameters(*reference);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i].parameter->value().grad(), theirs[i].parameter->value().grad(), 1e-11, 1e-12))
          << ours[i].name;
    }
  }
}

// gpt-oss: a bias of the router, one projection for both halves, biases, and a gate with a limit, which cuts here.
TEST(MoELayer, WithBiasesAndAClampEqualsItsDefinition) {
  auto parameters = small(5, 2, true);
  parameters.router_options.gate_bias = true;
  parameters.expert_options = {.bias = true, .clamp = ops::SwiGLUClamp{.limit = 0.6, .alpha = 1.3}};
  parameters.init = Init::normal(0.7);
  auto layer = made(parameters);
  auto copy = made(parameters);
  at::manual_seed(5);
  for (const char* name : {"router.gate.bias", "grouped_experts.gate_up_proj.bias", "grouped_experts.down_proj.bias"}) {
    const auto value = [&](MoELayer& one) {
      for (const auto& [own, parameter] : named_parameters(*one)) {
        if (own == name) {
          return parameter->value();
        }
      }
      return at::Tensor();
    };
    const at::NoGradGuard no_grad;
    value(layer).copy_(at::randn_like(value(layer)));
    value(copy).copy_(value(layer));
  }
  const at::Tensor hidden = at::randn({2, 7, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor hidden_ref = hidden.detach().clone().set_requires_grad(true);
  const at::Tensor grad = at::randn({2, 7, 6}, at::kDouble);

  const at::Tensor tokens = hidden_ref.view({-1, 6});
  const auto& gate = *copy->router->gate;
  const auto [best, chosen] = (at::matmul(tokens, gate.weight.t()) + gate.bias).topk(2, -1);
  const at::Tensor weights = best.softmax(-1);  // of the logits of the chosen experts alone
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    at::Tensor sum = at::zeros({6}, at::kDouble);
    for (int64_t k = 0; k < 2; ++k) {
      const auto e = chosen[t][k].item<int64_t>();
      const auto& experts = *copy->grouped_experts;
      const at::Tensor both = at::mv(experts.gate_up_proj->weight[e], tokens[t]) + experts.gate_up_proj->bias[e];
      const at::Tensor g = both.slice(0, 0, std::nullopt, 2).clamp(std::nullopt, 0.6);
      const at::Tensor u = both.slice(0, 1, std::nullopt, 2).clamp(-0.6, 0.6);
      const at::Tensor inner = (u + 1) * g * at::sigmoid(1.3 * g);
      sum = sum + weights[t][k] * (at::mv(experts.down_proj->weight[e], inner) + experts.down_proj->bias[e]);
    }
    rows.push_back(sum);
  }
  const at::Tensor expected = at::stack(rows).view({2, 7, 6});
  const at::Tensor output = layer(hidden);
  EXPECT_TRUE(at::allclose(output, expected, 1e-12, 1e-12));
  output.backward(grad);
  expected.backward(grad);
  EXPECT_TRUE(at::allclose(hidden.grad(), hidden_ref.grad(), 1e-11, 1e-12));
  const auto ours = named_parameters(*layer), theirs = named_parameters(*copy);
  ASSERT_EQ(ours.size(), 6U);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].parameter->value().grad(), theirs[i].parameter->value().grad(), 1e-11, 1e-12))
        << ours[i].name;
  }
}

// Gemma 4: the gate of an expert is GELU, and the router sees other hidden states than the experts.
TEST(MoELayer, WithGeluAndARouterOfOtherStatesEqualsItsDefinition) {
  auto parameters = small(16, 3, true);
  parameters.expert_options = {.gelu_tanh = true};
  auto layer = made(parameters);
  auto copy = made(parameters);
  at::manual_seed(6);
  const at::Tensor routed = at::randn({2, 7, 6}, at::kDouble);
  const at::Tensor hidden = at::randn({2, 7, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor hidden_ref = hidden.detach().clone().set_requires_grad(true);
  const at::Tensor grad = at::randn({2, 7, 6}, at::kDouble);

  const at::Tensor tokens = hidden_ref.view({-1, 6});
  const auto [best, chosen] = at::linear(routed.view({-1, 6}), copy->router->gate->weight).topk(3, -1);
  const at::Tensor weights = best.softmax(-1);
  const auto& experts = *copy->grouped_experts;
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    at::Tensor sum = at::zeros({6}, at::kDouble);
    for (int64_t k = 0; k < 3; ++k) {
      const auto e = chosen[t][k].item<int64_t>();
      const at::Tensor gate = at::mv(experts.gate_proj->weight[e], tokens[t]);
      const at::Tensor cube = 0.044715 * gate * gate * gate;
      const at::Tensor bent = 0.5 * gate * (1 + (std::sqrt(2 / std::numbers::pi) * (gate + cube)).tanh());
      const at::Tensor inner = bent * at::mv(experts.up_proj->weight[e], tokens[t]);
      sum = sum + weights[t][k] * at::mv(experts.down_proj->weight[e], inner);
    }
    rows.push_back(sum);
  }
  const at::Tensor expected = at::stack(rows).view({2, 7, 6});
  const at::Tensor output = layer(hidden, routed);
  EXPECT_TRUE(at::allclose(output, expected, 1e-12, 1e-12));
  output.backward(grad);
  expected.backward(grad);
  EXPECT_TRUE(at::allclose(hidden.grad(), hidden_ref.grad(), 1e-11, 1e-12));
  const auto ours = named_parameters(*layer), theirs = named_parameters(*copy);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].parameter->value().grad(), theirs[i].parameter->value().grad(), 1e-11, 1e-12))
        << ours[i].name;
  }
}

// Nemotron-H: down_proj(relu(up_proj(x))^2) for every expert and for the shared one. With a latent size, the routed
// experts are between two projections.
class MoELayerWithoutGates : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(LatentSizes, MoELayerWithoutGates, ::testing::Values(0, 4));

TEST_P(MoELayerWithoutGates, EqualsItsDefinition) {
  const int64_t latent = GetParam();
  auto parameters = small(5, 2, true);
  parameters.expert_options = {.relu_squared = true};
  parameters.shared_expert = SharedExpertParameters{.intermediate_size = 7, .enable_gate = false};
  parameters.latent_size = latent;
  auto layer = made(parameters), copy = made(parameters);
  at::manual_seed(6);
  const at::Tensor hidden = at::randn({2, 7, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor hidden_ref = hidden.detach().clone().set_requires_grad(true);
  const at::Tensor grad = at::randn({2, 7, 6}, at::kDouble);

  const auto block = [](const at::Tensor& x, const at::Tensor& up, const at::Tensor& down) {
    const at::Tensor inner = at::mv(up, x);
    return at::mv(down, at::where(inner > 0, inner.pow(2), at::zeros_like(inner)));
  };
  const at::Tensor tokens = hidden_ref.view({-1, 6});
  const auto [best, chosen] = at::linear(tokens, copy->router->gate->weight).topk(2, -1);
  const at::Tensor weights = best.softmax(-1);
  const auto& experts = *copy->grouped_experts;
  const auto& shared = *copy->shared_relu_squared;
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    const at::Tensor x = latent > 0 ? at::mv(copy->fc1_latent_proj->weight, tokens[t]) : tokens[t];
    at::Tensor sum = at::zeros_like(x);
    for (int64_t k = 0; k < 2; ++k) {
      const auto e = chosen[t][k].item<int64_t>();
      sum = sum + weights[t][k] * block(x, experts.up_proj->weight[e], experts.down_proj->weight[e]);
    }
    sum = latent > 0 ? at::mv(copy->fc2_latent_proj->weight, sum) : sum;
    rows.push_back(sum + block(tokens[t], shared.up_proj->weight, shared.down_proj->weight));
  }
  const at::Tensor expected = at::stack(rows).view({2, 7, 6}), output = layer(hidden);
  EXPECT_TRUE(at::allclose(output, expected, 1e-12, 1e-12));
  output.backward(grad);
  expected.backward(grad);
  EXPECT_TRUE(at::allclose(hidden.grad(), hidden_ref.grad(), 1e-11, 1e-12));
  const auto ours = named_parameters(*layer), theirs = named_parameters(*copy);
  ASSERT_EQ(ours.size(), latent > 0 ? 7U : 5U);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].parameter->value().grad(), theirs[i].parameter->value().grad(), 1e-11, 1e-12))
        << ours[i].name;
  }
  parameters.expert_options.clamp = ops::SwiGLUClamp{};
  EXPECT_THAT(
      [&] { made(parameters); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("needs experts with a gate")));
}

TEST(MoELayer, CountsTokensOnceUnderActivationCheckpointing) {
  auto layer = made(small(4, 2, true));
  const at::Tensor hidden = at::randn({1, 9, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor plain = layer(hidden);
  const at::Tensor counts = layer->moe_tokens_per_expert();
  EXPECT_EQ(counts.sum().item<int64_t>(), 18);
  layer->reset_moe_stats();
  EXPECT_EQ(layer->moe_tokens_per_expert().sum().item<int64_t>(), 0);
  const at::Tensor again = checkpoint([layer](const at::Tensor& x) mutable { return layer(x); }, hidden);
  again.sum().backward();
  EXPECT_TRUE(at::equal(again, plain));
  EXPECT_TRUE(at::equal(layer->moe_tokens_per_expert(), counts));
}

TEST(MoELayer, AddsASharedExpertScaledByItsGate) {
  for (const bool gated : {true, false}) {
    auto parameters = small(4, 2, true);
    parameters.shared_expert = SharedExpertParameters{.intermediate_size = 7, .enable_gate = gated};
    auto layer = made(parameters);
    auto without = made(small(4, 2, true));  // the same values, which depend on the names
    at::manual_seed(2);
    const at::Tensor hidden = at::randn({2, 3, 6}, at::kDouble);
    at::Tensor shared = layer->shared_expert(hidden);
    if (gated) {
      shared = shared * layer->shared_expert_gate(hidden).sigmoid();
    }
    EXPECT_TRUE(at::allclose(layer(hidden), without(hidden) + shared, 1e-12, 1e-12));  // rounding of float64
  }
}

TEST(MoELayer, SelectsByProbabilityPlusBiasButWeighsByProbability) {
  auto parameters = small(4, 1, false);
  parameters.enable_expert_bias = true;
  auto layer = made(parameters);
  EXPECT_EQ(layer->router->expert_bias.scalar_type(), at::kFloat) << "whatever the model's type";
  layer->router->expert_bias.copy_(at::tensor({0.0F, 0.0F, 2.0F, 0.0F}));
  const at::Tensor hidden = at::randn({1, 5, 6}, at::kDouble);
  layer->eval();
  layer(hidden);
  const RoutingResult& routing = layer->last_routing();
  EXPECT_TRUE(routing.selected_expert_indices.eq(2).all().item<bool>());
  EXPECT_TRUE(routing.selected_probabilities.squeeze(-1).equal(routing.probabilities.select(-1, 2)));
}

TEST(MoELayer, KeepsItsLastRoutingInEvaluationOnly) {
  auto layer = made(small(4, 1, false));
  const at::Tensor hidden = at::randn({1, 5, 6}, at::kDouble);
  layer->eval();
  layer(hidden);
  EXPECT_EQ(layer->last_routing().logits.sizes(), (std::vector<int64_t>{5, 4}));
  layer->train();
  layer(hidden);
  EXPECT_FALSE(layer->last_routing().logits.defined());
  EXPECT_FALSE(layer->last_routing().probabilities.defined());
}

TEST(MoELayer, RaisesTheBiasOfExpertsWithFewTokensAndKeepsTheMean) {
  auto parameters = small(4, 1, true);
  parameters.enable_expert_bias = true;
  auto layer = made(parameters);
  layer->router->update_expert_bias(at::tensor({10, 0, 3, 3}), 0.5);  // mean 4: one above, three below
  // Signs -1 1 1 1, times 0.5, minus their mean 0.25.
  EXPECT_TRUE(layer->router->expert_bias.equal(at::tensor({-0.75F, 0.25F, 0.25F, 0.25F})));
  EXPECT_EQ(count_parameters(*layer), count_parameters(*made(small(4, 1, true)))) << "it is state, not a parameter";
}

TEST(MoELayer, AFrozenGateKeepsItsBias) {
  auto parameters = small(4, 1, true);
  parameters.enable_expert_bias = true;
  auto layer = made(parameters);
  for (const auto& [name, parameter] : named_parameters(*layer->router)) {
    parameter->set_trainable(false);
  }
  layer->router->update_expert_bias(at::tensor({10, 0, 3, 3}), 0.5);
  EXPECT_TRUE(layer->router->expert_bias.equal(at::zeros({4})));
}

// Entries of experts that a layer lacks are negative, and stay negative in sums over ranks.
TEST(MoELayer, IsCountedAndBalancedBesideMoELayersOfOtherSizes) {
  struct Two : torch::nn::Module {
    MoELayer large, small;
    Two(const MoELayer& four, const MoELayer& two)
        : large(register_module("large", four)), small(register_module("small", two)) {}
  };
  auto four = small(4, 1, true);
  auto two = small(2, 2, true);
  four.enable_expert_bias = two.enable_expert_bias = true;
  Two model(made(four), made(two));
  const at::Tensor tokens = at::randn({1, 3, 6}, at::kDouble);
  model.small(model.large(tokens));
  const at::Tensor counts = moe_tokens_per_expert(model);
  EXPECT_TRUE(counts[0].equal(model.large->moe_tokens_per_expert()));
  EXPECT_TRUE(counts[1].equal(at::tensor({3, 3, -1, -1}, at::kLong)));
  update_expert_bias(model, at::tensor({10, 0, 3, 3, 8, 4, -2, -2}, at::kLong).view({2, 4}), 0.5);
  EXPECT_TRUE(model.large->router->expert_bias.equal(at::tensor({-0.75F, 0.25F, 0.25F, 0.25F})));
  EXPECT_TRUE(model.small->router->expert_bias.equal(at::tensor({-0.5F, 0.5F})));
}

// Records when tokens are sent and computed, and when a module is called.
struct Diary : ExpertDispatcher, CallHook {
  struct Dispatch : ExpertDispatch {
    Dispatch(std::vector<std::string>& lines, std::unique_ptr<ExpertDispatch> local)
        : lines_(lines), local_(std::move(local)) {}
    at::Tensor run(const GroupedExperts& experts, const at::Tensor& probabilities) override {
      lines_.emplace_back("experts");
      return local_->run(experts, probabilities);
    }
    std::vector<std::string>& lines_;
    std::unique_ptr<ExpertDispatch> local_;
  };
  std::unique_ptr<ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const override {
    lines.emplace_back("start");
    return std::make_unique<Dispatch>(lines, local_expert_dispatcher()->start(tokens, permutation));
  }
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    lines.emplace_back("shared expert");
    return forward(input);
  }
  mutable std::vector<std::string> lines;
};

TEST(MoELayer, ComputesTheSharedExpertWhileTokensAreDispatched) {
  auto parameters = small(4, 2, true);
  parameters.shared_expert = SharedExpertParameters{.intermediate_size = 7};
  auto layer = made(parameters);
  const at::Tensor hidden = at::randn({1, 5, 6}, at::kDouble);
  const at::Tensor expected = layer(hidden);
  const auto diary = std::make_shared<Diary>();
  layer->set_dispatcher(diary);
  layer->shared_expert->add_call_hook(diary);
  EXPECT_TRUE(at::equal(layer(hidden), expected));
  EXPECT_THAT(diary->lines, ::testing::ElementsAre("start", "shared expert", "experts"));
}

TEST(MoELayer, AcceptsZeroTokens) {
  auto layer = made(small(4, 2, true));
  const at::Tensor hidden = at::zeros({2, 0, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor output = layer(hidden);
  EXPECT_EQ(output.sizes(), hidden.sizes());
  output.sum().backward();
  for (const auto& [name, parameter] : named_parameters(*layer)) {
    ASSERT_TRUE(parameter->value().grad().defined()) << name;
    EXPECT_EQ(parameter->value().grad().abs().max().item<double>(), 0) << name;
  }
}

// Two ranks of a micro-batch, simulated by one: the sum over ranks doubles all counts.
TEST(RouterLosses, CountTheTokensOfAllRanksOfAForward) {
  at::manual_seed(6);
  const at::Tensor logits = at::randn({10, 4}, at::kDouble);
  const at::Tensor counts = at::tensor({8, 5, 4, 3}, at::kLong);
  const RouterLossWeights weights{.load_balancing = 0.5, .z = 0.25};
  RouterLosses whole;
  whole.begin(weights);
  whole.add(logits, logits.softmax(-1), counts);

  int sums = 0;
  RouterLosses half;
  half.set_sum_over_ranks([&](const at::Tensor& mine) {
    ++sums;
    return 2 * mine;  // both ranks see the same tokens
  });
  half.begin(weights);  // begin() keeps the function that sums over ranks
  half.add(logits, logits.softmax(-1), counts);
  EXPECT_NEAR(half.load_balancing_loss().item<double>(), whole.load_balancing_loss().item<double>(), 1e-14);
  EXPECT_NEAR(half.z_loss().item<double>(), whole.z_loss().item<double>(), 1e-14);
  // Each rank has half of the loss.
  EXPECT_TRUE(at::allclose(2 * half.probability_gradient(logits), whole.probability_gradient(logits), 1e-14));
  EXPECT_TRUE(at::allclose(2 * half.logit_gradient(logits), whole.logit_gradient(logits), 1e-14));
  EXPECT_EQ(sums, 1) << "one collective a forward";
}

TEST(MoELayer, RefusesATopKAboveTheNumberOfExperts) {
  EXPECT_THAT(
      [] { MoELayer(small(4, 5, true)); },
      ::testing::Throws<Error>(::testing::Property(&Error::what, ::testing::HasSubstr("num_experts_per_tok"))));
}

}  // namespace
}  // namespace lehr::nn
