#include "lehr/nn/float8.h"

#include <gmock/gmock.h>

#include "lehr/nn/experts.h"
#include "lehr/nn/head.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "lehr/ops/linear/linear.h"
#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {

using ops::Float8Recipe;
using test::made;
using testing::ElementsAre;

// One layer of every kind.
struct Parts : Module {
  explicit Parts(int64_t width = 32) {
    mlp = register_module("mlp", SwiGLU(16, width));
    odd = register_module("odd", Linear(16, 24));
    router =
        register_module("router", TopKRouter(TopKRouterParameters{.hidden_size = 16, .num_experts = 32, .top_k = 2}));
    head = register_module("head", ClassificationHead(16, 16, 0.0));
  }
  SwiGLU mlp{nullptr};
  Linear odd{nullptr};
  TopKRouter router{nullptr};
  ClassificationHead head{nullptr};
};

TEST(Float8Layers, AreSortedByTheirSupportForFloat8) {
  const Float8Layers layers = float8_layers(Parts());
  EXPECT_THAT(layers.fit, ElementsAre("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"));
  EXPECT_THAT(layers.other_sizes, ElementsAre("odd"));
  EXPECT_THAT(layers.kept, ElementsAre("router.gate", "head.score"));
  EXPECT_EQ(layers.size(), 6U);
  EXPECT_THAT(
      float8_layers(Parts(40)).other_sizes, ElementsAre("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "odd"));
}

TEST(Float8Layers, UseFloat8IfTheirSizesFitAndTheyAreNotExcluded) {
  Parts parts;
  EXPECT_EQ(count_float8(parts), 0);
  EXPECT_EQ(use_float8(parts, Float8Recipe::rowwise, [](const std::string& name) { return name == "mlp.up_proj"; }), 2);
  EXPECT_EQ(count_float8(parts), 2);
  EXPECT_EQ(parts.mlp->gate_proj->float8(), Float8Recipe::rowwise);
  EXPECT_FALSE(parts.mlp->up_proj->float8());
  EXPECT_FALSE(parts.odd->float8());
  EXPECT_FALSE(parts.router->gate->float8());
}

TEST(LinearInFloat8, KeepsItsParametersAndDoesNotConvertAdapters) {
  struct Half : LinearAdapter {
    at::Tensor forward(const at::Tensor& input) override { return input.narrow(-1, 0, 16) / 2; }
  };
  at::manual_seed(1);
  auto layer = made(Linear(32, 16, Init::normal(0.02), /*bias=*/true));
  const at::Tensor x = at::randn({3, 32}, at::kDouble);
  const at::Tensor before = layer->weight.clone();
  layer->set_float8(Float8Recipe::rowwise);
  const at::Tensor plain = layer->forward(x);
  EXPECT_TRUE(at::equal(plain, ops::linear_float8(x, layer->weight, layer->bias)));
  EXPECT_FALSE(at::equal(plain, ops::linear(x, layer->weight, layer->bias)));
  EXPECT_TRUE(at::equal(layer->weight, before));
  layer->set_adapter("half", std::make_shared<Half>());
  EXPECT_TRUE(at::equal(layer->forward(x), plain + x.narrow(-1, 0, 16) / 2));
}

MoELayer experts_of(int64_t width) {
  return MoELayer(MoEParameters{
      .hidden_size = 16,
      .intermediate_size = width,
      .num_experts = 4,
      .top_k = 2,
      .shared_expert = SharedExpertParameters{.intermediate_size = 32}});
}

TEST(Float8Experts, AreProjectionsOfAllExpertsOfALayer) {
  MoELayer layer = experts_of(32);
  EXPECT_THAT(
      float8_experts(*layer).fit,
      ElementsAre("grouped_experts.gate_proj", "grouped_experts.up_proj", "grouped_experts.down_proj"));
  EXPECT_THAT(float8_experts(*layer).kept, ElementsAre());
  EXPECT_EQ(float8_experts(*experts_of(24)).other_sizes.size(), 3U);
  EXPECT_EQ(float8_experts(Parts()).size(), 0U) << "a router alone";
  EXPECT_THAT(
      float8_layers(*layer).fit,
      ElementsAre("shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"));
}

TEST(Float8Experts, UseFloat8IfTheyAreNamedAndTheirSizesFit) {
  MoELayer layer = experts_of(32);
  use_float8(*layer, Float8Recipe::rowwise);
  EXPECT_EQ(count_float8_experts(*layer), 0) << "they are not linear layers";
  const auto but_down = [](const std::string& name) { return !name.ends_with("down_proj"); };
  EXPECT_EQ(use_float8_experts(*layer, Float8Recipe::rowwise_with_gw_hp, but_down), 2);
  EXPECT_EQ(count_float8_experts(*layer), 2);
  EXPECT_EQ(layer->grouped_experts->gate_proj->float8(), Float8Recipe::rowwise_with_gw_hp);
  EXPECT_FALSE(layer->grouped_experts->down_proj->float8());
  const auto all = [](const std::string&) { return true; };
  EXPECT_EQ(use_float8_experts(*experts_of(24), Float8Recipe::rowwise, all), 0);
}

struct GroupedHalf : GroupedLinearAdapter {
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& /*ends*/, int64_t /*first*/) override {
    return rows.narrow(-1, 0, 16) / 2;
  }
};

TEST(Float8Experts, ComputeTheOperatorWithBiasAndKeepAdaptersInHighPrecision) {
  at::manual_seed(2);
  auto layer = made(GroupedLinear(2, 32, 16, Init::normal(0.02), /*with_bias=*/true));
  const at::Tensor x = at::randn({5, 32}, at::kDouble), ends = at::tensor({3, 5}, at::kInt);
  const at::Tensor before = layer->weight.clone();
  layer->set_float8(Float8Recipe::rowwise);
  const at::Tensor plain = layer->forward(x, ends);
  EXPECT_TRUE(at::equal(plain, ops::grouped_linear_float8(x, layer->weight, ends, layer->bias)));
  EXPECT_FALSE(at::equal(plain, ops::grouped_linear(x, layer->weight, ends, layer->bias)));
  EXPECT_TRUE(at::equal(layer->weight, before));
  layer->set_adapter("half", std::make_shared<GroupedHalf>());
  EXPECT_TRUE(at::equal(layer->forward(x, ends), plain + x.narrow(-1, 0, 16) / 2));
}

}  // namespace
}  // namespace lehr::nn
