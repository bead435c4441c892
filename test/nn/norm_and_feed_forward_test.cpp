// Norms and FFNs compared with their formulas, with gradients.
#include <gmock/gmock.h>

#include <numbers>

#include "lehr/base/error.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/layer_norm.h"
#include "lehr/nn/rms_norm.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {
using test::expect_equal_to_definition;
using test::made;

at::Tensor formula(Gelu gelu, const at::Tensor& x) {
  return gelu == Gelu::exact ? 0.5 * x * (1 + (x / std::numbers::sqrt2).erf())
                             : 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))).tanh());
}

TEST(RMSNorm, ZeroCenteredStartsAtTheIdentity) {
  RMSNorm norm(6, 1e-6, NormWeight::zero_centered);
  materialize(*norm, at::kCPU, at::kDouble);
  norm->reset_parameters();
  EXPECT_TRUE(at::equal(norm->weight, at::zeros({6}, at::kDouble)));
  const at::Tensor x = at::randn({3, 6}, at::kDouble);
  {
    at::NoGradGuard no_grad;
    norm->weight.copy_(at::randn({6}, at::kDouble));
  }
  expect_equal_to_definition(
      "zero-centered",
      *norm,
      [&](const at::Tensor& in) { return norm(in); },
      [&](const at::Tensor& in) { return in / (in.square().mean(-1, true) + 1e-6).sqrt() * (1 + norm->weight); },
      x);
}

TEST(LayerNorm, EqualsItsFormula) {
  for (const bool bias : {false, true}) {
    LayerNorm norm(9, 1e-3, bias);
    materialize(*norm, at::kCPU, at::kDouble);
    norm->reset_parameters();
    EXPECT_EQ(count_parameters(*norm), bias ? 18 : 9);
    {
      at::NoGradGuard no_grad;
      norm->weight.copy_(at::randn({9}, at::kDouble));
      if (bias) {
        norm->bias.copy_(at::randn({9}, at::kDouble));
      }
    }
    const auto definition = [&](const at::Tensor& x) {
      const at::Tensor centered = x - x.mean(-1, true);
      const at::Tensor y = centered / (centered.square().mean(-1, true) + 1e-3).sqrt() * norm->weight;
      return bias ? y + norm->bias : y;
    };
    expect_equal_to_definition(
        "bias " + std::to_string(bias),
        *norm,
        [&](const at::Tensor& x) { return norm(x); },
        definition,
        at::randn({2, 4, 9}, at::kDouble));
  }
  EXPECT_THROW(LayerNorm(4, 0.0), Error);
}

TEST(GeluMlp, EqualsItsFormula) {
  for (const Gelu gelu : {Gelu::exact, Gelu::tanh}) {
    for (const bool bias : {false, true}) {
      auto block =
          made(GeluMlp(GeluMlpParameters{.hidden_size = 6, .intermediate_size = 10, .gelu = gelu, .bias = bias}));
      if (bias) {
        at::NoGradGuard no_grad;
        block->fc1->bias.copy_(at::randn({10}, at::kDouble));
      }
      const auto definition = [&](const at::Tensor& x) {
        const at::Tensor inner = x.matmul(block->fc1->weight.t());
        const at::Tensor y = formula(gelu, bias ? inner + block->fc1->bias : inner).matmul(block->fc2->weight.t());
        return bias ? y + block->fc2->bias : y;
      };
      expect_equal_to_definition(
          "gelu", *block, [&](const at::Tensor& x) { return block(x); }, definition, at::randn({2, 3, 6}, at::kDouble));
    }
  }
}

TEST(GeGLU, EqualsItsFormula) {
  for (const Gelu gelu : {Gelu::exact, Gelu::tanh}) {
    auto block = made(GeGLU(6, 10, gelu));
    const auto definition = [&](const at::Tensor& x) {
      const at::Tensor gate = formula(gelu, x.matmul(block->gate_proj->weight.t()));
      return (gate * x.matmul(block->up_proj->weight.t())).matmul(block->down_proj->weight.t());
    };
    expect_equal_to_definition(
        "geglu", *block, [&](const at::Tensor& x) { return block(x); }, definition, at::randn({2, 3, 6}, at::kDouble));
  }
}

}  // namespace
}  // namespace lehr::nn
