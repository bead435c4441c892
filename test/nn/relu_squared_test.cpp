// The feed-forward block with squared ReLU against its definition.
#include "lehr/nn/relu_squared.h"

#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {

TEST(ReluSquaredMlp, EqualsItsDefinition) {
  at::manual_seed(1);
  auto block = test::made(ReluSquaredMlp(6, 20));
  test::expect_equal_to_definition(
      "relu2",
      *block,
      [&](const at::Tensor& x) { return block(x); },
      [&](const at::Tensor& x) {
        const at::Tensor up = x.matmul(block->up_proj->weight.t());
        return at::where(up > 0, up.square(), at::zeros_like(up)).matmul(block->down_proj->weight.t());
      },
      at::randn({2, 5, 6}, at::kDouble));
}

}  // namespace
}  // namespace lehr::nn
