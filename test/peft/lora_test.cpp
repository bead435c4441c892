#include "lehr/peft/lora.h"

#include <gmock/gmock.h>

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/weight_gradients.h"
#include "lehr/peft/inject.h"
#include "test/peft/support.h"

namespace lehr::peft {
namespace {
using testing::fails_with;

struct Adapted {
  nn::Linear linear;
  std::shared_ptr<LoraLinear> lora;
};

// A linear layer with an adapter, both with random weights.
Adapted adapted(int64_t in, int64_t out, const Lora& settings, at::ScalarType dtype = at::kDouble) {
  Adapted made{nn::Linear(in, out), std::make_shared<LoraLinear>("layer", in, out, settings)};
  made.linear->set_adapter(kAdapterName, made.lora);
  nn::materialize(*made.linear, at::kCPU, dtype);
  made.linear->reset_parameters({.seed = 1});
  at::NoGradGuard no_grad;
  made.lora->B.normal_();
  return made;
}

struct AdaptedGroups {
  nn::GroupedLinear linear;
  std::shared_ptr<LoraGroupedLinear> lora;
};

AdaptedGroups adapted_groups(int64_t groups, int64_t in, int64_t out, const Lora& settings) {
  AdaptedGroups made{
      nn::GroupedLinear(groups, in, out), std::make_shared<LoraGroupedLinear>("experts", groups, in, out, settings)};
  made.linear->set_adapter(kAdapterName, made.lora);
  nn::materialize(*made.linear, at::kCPU, at::kDouble);
  made.linear->reset_parameters({.seed = 1});
  at::NoGradGuard no_grad;
  made.lora->B.normal_();
  return made;
}

TEST(LoraLinear, EqualsTheWorkedExample) {
  auto [linear, lora] = adapted(10, 20, {.r = 2, .alpha = 4});
  {
    at::NoGradGuard no_grad;
    linear->weight.fill_(1);
    lora->A.fill_(0.5);
    lora->B.fill_(0.1);
  }
  // 10 + 4/2 * (2 ranks * 0.1 * (10 * 0.5)) = 12; 1 + 4/2 * (2 * 0.1 * 0.5) = 1.2
  EXPECT_TRUE(at::allclose(linear(at::ones({3, 10}, at::kDouble)), at::full({3, 20}, 12.0, at::kDouble), 0, 1e-12));
  EXPECT_TRUE(at::allclose(linear->weight + lora->delta_weight(), at::full({20, 10}, 1.2, at::kDouble), 0, 1e-12));
}

TEST(LoraLinear, IsInitializedLikePeftAndHasNoEffectAtFirst) {
  nn::Linear linear(400, 30);
  auto lora = std::make_shared<LoraLinear>("layer", 400, 30, Lora{.r = 50});
  linear->set_adapter(kAdapterName, lora);
  EXPECT_TRUE(lora->A.is_meta());
  nn::materialize(*linear, at::kCPU, at::kFloat);
  linear->reset_parameters({.seed = 3, .prefix = "layer."});  // initializes the base as well
  EXPECT_GT(linear->weight.abs().sum().item<double>(), 0);
  EXPECT_EQ(lora->B.abs().sum().item<double>(), 0);
  // Uniform within 1 / sqrt(400) = 0.05, of variance 0.05^2 / 3; 20,000 numbers, five standard errors.
  EXPECT_LE(lora->A.abs().max().item<double>(), 0.05);
  EXPECT_NEAR(lora->A.mean().item<double>(), 0, 1.1e-3);
  EXPECT_NEAR(lora->A.std().item<double>(), 0.05 / std::sqrt(3.0), 7e-4);
  at::Tensor expected = at::empty({50, 400});
  nn::fill(expected, nn::Init::uniform(-0.05, 0.05), 3, "layer.lora.A");
  EXPECT_TRUE(at::equal(lora->A, expected));
  const at::Tensor input = at::randn({2, 5, 400});
  EXPECT_TRUE(at::equal(linear(input), ops::linear(input, linear->weight)));
}

TEST(LoraLinear, ScalesByTheRootOfTheRankUnderRsLora) {
  EXPECT_EQ((Lora{.r = 4, .alpha = 8}.scaling()), 2);
  EXPECT_EQ((Lora{.r = 4, .alpha = 8, .use_rslora = true}.scaling()), 4);
}

// Gradients compared with autograd on the formula. The tolerance 1e-12 is the rounding of float64 sums in another
// order.
TEST(LoraLinear, HasTheGradientsOfItsFormula) {
  auto [linear, lora] = adapted(7, 5, {.r = 3, .alpha = 6});
  linear->own_parameter("weight")->set_trainable(false);
  const at::Tensor input = at::randn({2, 4, 7}, at::kDouble).set_requires_grad(true);
  const at::Tensor direction = at::randn({2, 4, 5}, at::kDouble);
  (linear(input) * direction).sum().backward();

  const at::Tensor x = input.detach().clone().set_requires_grad(true);
  const at::Tensor a = lora->A.detach().clone().set_requires_grad(true);
  const at::Tensor b = lora->B.detach().clone().set_requires_grad(true);
  const at::Tensor y = at::matmul(x, linear->weight.t()) + 2.0 * at::matmul(at::matmul(x, a.t()), b.t());
  (y * direction).sum().backward();
  EXPECT_TRUE(at::allclose(input.grad(), x.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(lora->A.grad(), a.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(lora->B.grad(), b.grad(), 0, 1e-12));
  EXPECT_FALSE(linear->weight.grad().defined());
}

TEST(LoraLinear, DropoutDependsOnStepAndSequenceOnly) {
  auto [linear, lora] = adapted(64, 8, {.r = 64, .dropout = 0.25});
  {
    at::NoGradGuard no_grad;
    linear->weight.zero_();
    lora->A.copy_(at::eye(64, at::kDouble));  // so that B shows the output of A(dropout(x))
  }
  const at::Tensor input = at::randn({4, 6, 64}, at::kDouble);
  linear->eval();
  const at::Tensor whole = linear(input);
  EXPECT_TRUE(at::allclose(whole, at::linear(input, lora->B) * 0.25, 0, 1e-12));
  linear->train();
  lora->set_dropout_stream(1, 1, 0);
  const at::Tensor first = linear(input);
  EXPECT_FALSE(at::allclose(first, whole));
  EXPECT_TRUE(at::equal(first, linear(input))) << "until the stream changes, so that checkpointing sees the same masks";
  lora->set_dropout_stream(1, 2, 0);
  EXPECT_FALSE(at::equal(first, linear(input)));
  lora->set_dropout_stream(1, 1, 2);
  EXPECT_TRUE(at::equal(first.narrow(0, 2, 2), linear(input.narrow(0, 2, 2))))
      << "rows alone have the masks that they have among others";
  const auto one_row = [&input, layer = linear.ptr()] { layer->forward(input[0]); };
  EXPECT_THAT(one_row, fails_with("peft.dropout: layer: masks need an input of shape (B, T, C)"));
}

// The chunks of context parallelism, and parts of these of sequence parallelism.
TEST(LoraLinear, DropoutOfAPartOfASequenceIsThatOfTheWhole) {
  auto [linear, lora] = adapted(6, 8, {.r = 4, .dropout = 0.5});
  linear->train();
  lora->set_dropout_stream(1, 1, 3);
  const at::Tensor input = at::randn({2, 16, 6}, at::kDouble);
  const at::Tensor whole = linear(input);
  const auto rows = [](const at::Tensor& all, const std::vector<int64_t>& pairs) {  // of two tokens each
    std::vector<at::Tensor> parts;
    for (const int64_t pair : pairs) {
      parts.push_back(all.narrow(1, 2 * pair, 2));
    }
    return at::cat(parts, 1);
  };
  auto expect_same = [&, layer = linear](const std::vector<int64_t>& pairs) mutable {
    EXPECT_TRUE(at::allclose(layer(rows(input, pairs)), rows(whole, pairs), 0, 1e-12));
  };
  lora->set_sequence_part(1, 4);
  expect_same({2, 3});
  lora->set_sequence_chunks({1, 2});  // of four: pairs 2, 3, 4 and 5
  lora->set_sequence_part(0, 2);
  expect_same({2, 3});
  lora->set_sequence_part(1, 2);
  expect_same({4, 5});
  lora->set_sequence_chunks({0, 3});  // pairs 0, 1, 6 and 7
  lora->set_sequence_part(1, 4);
  expect_same({1});
  lora->set_sequence_part(0, 1);
  expect_same({0, 1, 6, 7});
}

// A share of 0.25 of 65,536 inputs is dropped, within five standard errors; the rest is scaled by 1 / 0.75.
TEST(LoraLinear, DropoutDropsItsShareAndKeepsTheMean) {
  auto [linear, lora] = adapted(256, 256, {.r = 256, .alpha = 256, .dropout = 0.25}, at::kFloat);
  {
    at::NoGradGuard no_grad;
    linear->weight.zero_();
    lora->A.copy_(at::eye(256));
    lora->B.copy_(at::eye(256));
  }
  linear->train();
  lora->set_dropout_stream(5, 9, 0);
  const at::Tensor kept = linear(at::ones({2, 128, 256}));
  EXPECT_NEAR(kept.eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.0085);
  EXPECT_NEAR(kept.max().item<double>(), 1 / 0.75, 1e-6);
}

TEST(LoraLinear, DropoutIsTheSameIfABlockIsRecomputed) {
  auto [linear, lora] = adapted(8, 8, {.r = 2, .dropout = 0.5});
  linear->train();
  lora->set_dropout_stream(1, 7, 0);
  const at::Tensor input = at::randn({2, 3, 8}, at::kDouble);
  linear(input).square().sum().backward();
  const at::Tensor plain = lora->A.grad().clone();
  lora->A.mutable_grad().reset();
  nn::checkpoint([layer = linear](const at::Tensor& x) mutable { return layer(x); }, input).square().sum().backward();
  EXPECT_TRUE(at::equal(lora->A.grad(), plain));
}

// Frozen weights with trained adapters, in linear and grouped layers: the two matmuls of an adapter are deferred, and
// nothing else.
TEST(LoraLinear, WgradOfAdaptersMayBeDeferred) {
  const auto expect_same = [](const auto& layer, const auto& lora, auto forward) {
    layer->own_parameter("weight")->set_trainable(false);
    forward().backward();
    const at::Tensor a = lora->A.grad(), b = lora->B.grad();
    lora->A.mutable_grad().reset();
    lora->B.mutable_grad().reset();
    const auto wgrads = std::make_shared<ops::WeightGradients>();
    at::Tensor loss;
    {
      const ops::WeightGradients::Scope scope(wgrads);
      loss = forward();
    }
    wgrads->backward_input({loss});
    EXPECT_EQ(wgrads->size(), 2U);
    EXPECT_FALSE(lora->A.grad().defined());
    wgrads->backward_weight();
    EXPECT_TRUE(at::equal(lora->A.grad(), a));
    EXPECT_TRUE(at::equal(lora->B.grad(), b));
    EXPECT_FALSE(layer->weight.grad().defined());
  };
  const at::Tensor input = at::randn({2, 3, 8}, at::kDouble);
  auto [linear, lora] = adapted(8, 6, {.r = 2});
  expect_same(linear, lora, [&, layer = linear]() mutable { return layer(input).square().sum(); });
  auto [grouped, loras] = adapted_groups(3, 8, 6, {.r = 2});
  const at::Tensor ends = at::tensor({4, 4, 6}, at::kInt);
  expect_same(grouped, loras, [&, layer = grouped]() mutable {
    return layer(input.view({6, 8}), ends).square().sum();
  });
}

TEST(LoraLinear, RefusesInvalidSettings) {
  const auto made = [](const Lora& settings) { return [settings] { LoraLinear("layer", 3, 3, settings); }; };
  EXPECT_THAT(made(Lora{.r = 0}), fails_with("peft.r: expected a rank of 1 or more"));
  EXPECT_THAT(made(Lora{.alpha = 0}), fails_with("peft.alpha: expected a positive number"));
  EXPECT_THAT(made(Lora{.dropout = 1}), fails_with("peft.dropout: expected 0 <= p < 1"));
}

// Equals one LoraLinear per group; the middle group has no rows. The tolerance 1e-12 is the rounding of the same
// float64 sums.
TEST(LoraGroupedLinear, HasOneAdapterPerGroup) {
  auto [grouped, lora] = adapted_groups(3, 6, 4, {.r = 2, .alpha = 5});
  const at::Tensor rows = at::randn({7, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor ends = at::tensor({4, 4, 7}, at::kInt);
  const at::Tensor direction = at::randn({7, 4}, at::kDouble);
  const at::Tensor output = grouped(rows, ends);
  (output * direction).sum().backward();

  const at::Tensor x = rows.detach().clone().set_requires_grad(true);
  const at::Tensor a = lora->A.detach().clone().set_requires_grad(true);
  const at::Tensor b = lora->B.detach().clone().set_requires_grad(true);
  const at::Tensor whole = grouped->weight.detach() + 2.5 * at::matmul(b, a);  // (3, 4, 6)
  const at::Tensor expected =
      at::cat({at::linear(x.narrow(0, 0, 4), whole[0]), at::linear(x.narrow(0, 4, 3), whole[2])});
  (expected * direction).sum().backward();
  EXPECT_TRUE(at::allclose(output, expected, 0, 1e-12));
  EXPECT_TRUE(at::allclose(rows.grad(), x.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(lora->A.grad(), a.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(lora->B.grad(), b.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(grouped->weight + lora->delta_weight(), whole, 0, 1e-12));
}

TEST(LoraGroupedLinear, RefusesDropout) {
  const auto made = [] { LoraGroupedLinear("layers.0.experts.up_proj", 2, 3, 3, {.dropout = 0.1}); };
  EXPECT_THAT(made, fails_with("peft.dropout: layers.0.experts.up_proj: adapters of experts do not support dropout"));
}

TEST(Linear, AcceptsOneAdapterAndReturnsItOnRemoval) {
  auto [linear, lora] = adapted(3, 3, {.r = 1});
  EXPECT_EQ(nn::named_parameters(*linear).size(), 3U);
  const auto second = [layer = linear.ptr(), adapter = lora] { layer->set_adapter("other", adapter); };
  EXPECT_THAT(second, fails_with("already has adapter"));
  linear->remove_adapter();
  EXPECT_EQ(nn::named_parameters(*linear).size(), 1U);
  const at::Tensor input = at::randn({2, 3}, at::kDouble);
  EXPECT_TRUE(at::equal(linear(input), at::linear(input, linear->weight)));
  linear->remove_adapter();  // no effect
}

}  // namespace
}  // namespace lehr::peft
