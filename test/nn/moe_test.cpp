#include "lehr/nn/moe.h"

#include <gmock/gmock.h>

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

// The definition: every token through each of its experts.
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
    // 16 experts for 14 tokens: some get none.
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

TEST(MoELayer, RefusesMoreChoicesThanExperts) {
  EXPECT_THAT(
      [] { MoELayer(small(4, 5, true)); },
      ::testing::Throws<Error>(::testing::Property(&Error::what, ::testing::HasSubstr("num_experts_per_tok"))));
}

}  // namespace
}  // namespace lehr::nn
