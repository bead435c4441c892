#include "lehr/nn/module.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/head.h"
#include "lehr/nn/swiglu.h"

namespace lehr::nn {
namespace {

at::Tensor filled(
    at::ScalarType dtype, const Init& init, std::vector<int64_t> shape, int64_t first = 0, uint64_t seed = 5) {
  at::Tensor tensor = at::empty(shape, dtype);
  fill(tensor, init, seed, "layers.0.weight", first);
  return tensor;
}

TEST(Init, DependsOnSeedNameAndElementAlone) {
  for (const Init& init : {Init::normal(0.02), Init::truncated_normal(0.02), Init::uniform(-1, 1)}) {
    const at::Tensor whole = filled(at::kFloat, init, {130, 77});
    EXPECT_TRUE(at::equal(whole, filled(at::kFloat, init, {130, 77})));
    EXPECT_TRUE(at::equal(whole.narrow(0, 40, 11), filled(at::kFloat, init, {11, 77}, 40 * 77)));
    EXPECT_TRUE(at::equal(whole.to(at::kDouble), filled(at::kDouble, init, {130, 77})));
    EXPECT_TRUE(at::equal(whole.to(at::kBFloat16), filled(at::kBFloat16, init, {130, 77})));
    EXPECT_FALSE(at::equal(whole, filled(at::kFloat, init, {130, 77}, 0, 6)));
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    EXPECT_TRUE(at::equal(whole, filled(at::kFloat, init, {130, 77})));
    at::set_num_threads(threads);
  }
}

TEST(Init, FillsAShardWithTheNumbersOfTheWhole) {
  const Init init = Init::normal(0.02);
  const at::Tensor whole = filled(at::kFloat, init, {6, 10});
  const Box part{{2, 5}, {3, 7}};
  at::Tensor tensor = at::empty(shape_of(part), at::kFloat);
  fill(tensor, init, 5, "layers.0.weight", part, {6, 10});
  EXPECT_TRUE(at::equal(tensor, narrow_to(whole, part)));
}

// 400,000 numbers; tolerances are five standard errors.
TEST(Init, HasItsDistribution) {
  const at::Tensor normal = filled(at::kDouble, Init::normal(0.02), {400000});
  EXPECT_NEAR(normal.mean().item<double>(), 0, 1.6e-4);
  EXPECT_NEAR(normal.std().item<double>(), 0.02, 1.2e-4);
  const at::Tensor cut = filled(at::kDouble, Init::truncated_normal(0.02), {400000});
  EXPECT_LE(cut.abs().max().item<double>(), 0.04 * (1 + 1e-6));
  EXPECT_NEAR(
      cut.std().item<double>(),
      0.02 * 0.8796,
      1.2e-4);  // of a normal distribution truncated at two standard deviations
  const at::Tensor uniform = filled(at::kDouble, Init::uniform(-1, 3), {400000});
  EXPECT_NEAR(uniform.mean().item<double>(), 1, 1e-2);
  EXPECT_GE(uniform.min().item<double>(), -1);
  EXPECT_LT(uniform.max().item<double>(), 3);
}

TEST(Module, RefusesToInitializeWithoutStorage) {
  SwiGLU block(4, 6);
  EXPECT_TRUE(block->gate_proj->weight.is_meta());
  EXPECT_THAT(
      [&] { block->reset_parameters(); },
      ::testing::Throws<Error>(::testing::Property(&Error::what, ::testing::HasSubstr("gate_proj.weight"))));
}

TEST(Module, InitializesEveryParameterByItsFullName) {
  SwiGLU block(4, 6);
  materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 9, .prefix = "mlp."});
  at::Tensor expected = at::empty({6, 4});
  fill(expected, Init::normal(0.02), 9, "mlp.up_proj.weight");
  EXPECT_TRUE(at::equal(block->up_proj->weight, expected));
}

TEST(Module, TiedWeightsAreOneParameterAndTheirGradientsAddUp) {
  const SplitVocabulary vocabulary{{{"default", 7}}, {"default"}};
  struct Tied : Module {
    Tied(const SplitVocabulary& v) {
      embed = register_module("embed", SplitTokenEmbeddings(v, 3));
      head = register_module("head", SplitLanguageModellingHead(v, 3));
      head->tie_to(*embed);
    }
    SplitTokenEmbeddings embed{nullptr};
    SplitLanguageModellingHead head{nullptr};
  };
  Tied model(vocabulary);
  materialize(model, at::kCPU, at::kDouble);
  model.reset_parameters({.seed = 1});
  const auto parameters = named_parameters(model);
  ASSERT_EQ(parameters.size(), 1U);
  EXPECT_EQ(parameters[0].name, "embed.token_embedding.default.weight");
  const at::Tensor ids = at::tensor({1, 2, 6}).unsqueeze(0);
  model.head->logits(model.embed(ids)).square().sum().backward();
  const at::Tensor table = parameters[0].parameter->value().detach().clone().set_requires_grad(true);
  at::linear(at::embedding(table, ids), table).square().sum().backward();
  EXPECT_TRUE(at::allclose(parameters[0].parameter->value().grad(), table.grad(), 1e-12, 0));
}

TEST(Module, ForwardReadsTheShownTensorUntilItIsReset) {
  Linear layer(2, 2);
  materialize(*layer, at::kCPU, at::kFloat);
  layer->reset_parameters();
  const auto& parameter = layer->own_parameter("weight");
  parameter->show(at::eye(2));
  EXPECT_TRUE(at::equal(layer(at::ones({1, 2})), at::ones({1, 2})));
  parameter->show_value();
  EXPECT_TRUE(layer->weight.is_same(parameter->value()));
  EXPECT_THROW(layer->own_parameter("bias"), Error);
}

TEST(Module, DropsTheChildrenThatItDeclared) {
  struct TwoBlocks : Module {
    TwoBlocks() {
      declare_module("first", first, SwiGLU(4, 6));
      second = register_module("second", SwiGLU(4, 6));
    }
    SwiGLU first{nullptr}, second{nullptr};
  };
  TwoBlocks blocks;
  EXPECT_EQ(blocks.first.ptr(), blocks.named_children().front().value());
  blocks.drop_module("first");
  EXPECT_FALSE(blocks.first);
  EXPECT_EQ(named_parameters(blocks).size(), 3U);
  for (const char* name : {"first", "second"}) {
    EXPECT_THAT(
        [&] { blocks.drop_module(name); },
        ::testing::Throws<Error>(::testing::Property(&Error::what, ::testing::HasSubstr("of declare_module"))))
        << name;
  }
}

TEST(Module, FrozenParametersGetNoGradient) {
  SwiGLU block(4, 6);
  materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 1});
  block->up_proj->own_parameter("weight")->set_trainable(false);
  block(at::ones({2, 4})).sum().backward();
  EXPECT_FALSE(block->up_proj->weight.grad().defined());
  EXPECT_TRUE(block->down_proj->weight.grad().defined());
}

}  // namespace
}  // namespace lehr::nn
