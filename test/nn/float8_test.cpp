#include "lehr/nn/float8.h"

#include <gmock/gmock.h>

#include "lehr/nn/head.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"
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

}  // namespace
}  // namespace lehr::nn
