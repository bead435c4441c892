// The residual stream equals the paper's equation, whether a norm is fused with the addition or called as a module.
#include "lehr/nn/residual_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "test/nn/blocks.h"

namespace lehr::nn {
namespace {
using test::made;
using test::worst_error;

constexpr double kRounding = 1e-14;  // of a few float64 sums in another order

// Records the inputs of a module's calls.
struct Onlooker : CallHook {
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    inputs.push_back(input);
    return forward(input);
  }
  std::vector<at::Tensor> inputs;
};

// Records which modules are called; operators run as usual.
struct CallsOfModules : OperatorWatch {
  at::Tensor state(const Statement& /*statement*/) override { return {}; }
  void enter(const torch::nn::Module& module) override { entered.push_back(&module); }
  void leave() override {}
  std::vector<const torch::nn::Module*> entered;
};

struct TwoBlocks {
  RMSNorm first = made(RMSNorm(6, 1e-6, NormWeight::zero_centered));
  RMSNorm second = made(RMSNorm(6));

  static at::Tensor block(const at::Tensor& x) { return x.sin() * 3; }

  at::Tensor by_stream(const at::Tensor& x) const {
    ResidualStream residual(x);
    residual.add(block(residual.normed(first)));
    residual.add(block(residual.normed(second)));
    return residual.hidden_states();
  }
  at::Tensor by_equation(at::Tensor x) const {
    x = x + block(first(x));
    return x + block(second(x));
  }
};

struct Result {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Result run(const TwoBlocks& blocks, const std::function<at::Tensor(const at::Tensor&)>& forward) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 5, 6}, at::kDouble).set_requires_grad(true);
  Result result{.output = forward(x), .gradients = {}};
  result.output.backward(at::randn({2, 5, 6}, at::kDouble));
  for (at::Tensor leaf : {x, blocks.first->weight, blocks.second->weight}) {
    result.gradients.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
  return result;
}

void expect_equal(const Result& found, const Result& expected) {
  EXPECT_TRUE(at::equal(found.output, expected.output));
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_LE(worst_error(found.gradients[i], expected.gradients[i]), kRounding) << "gradient " << i;
  }
}

TEST(ResidualStream, EqualsTheResidualEquation) {
  const TwoBlocks blocks;
  const Result expected = run(blocks, [&](const at::Tensor& x) { return blocks.by_equation(x); });
  expect_equal(run(blocks, [&](const at::Tensor& x) { return blocks.by_stream(x); }), expected);
}

TEST(ResidualStream, HooksOfANormReceiveTheSum) {
  TwoBlocks blocks;
  const Result expected = run(blocks, [&](const at::Tensor& x) { return blocks.by_stream(x); });
  const auto at_first = std::make_shared<Onlooker>(), at_second = std::make_shared<Onlooker>();
  blocks.first->add_call_hook(at_first);
  blocks.second->add_call_hook(at_second);
  at::Tensor input;
  const auto hooked = [&](const at::Tensor& x) {
    input = x;
    return blocks.by_stream(x);
  };
  expect_equal(run(blocks, hooked), expected);
  ASSERT_EQ(at_first->inputs.size(), 1U);
  ASSERT_EQ(at_second->inputs.size(), 1U);
  EXPECT_TRUE(at::equal(at_first->inputs[0], input));
  EXPECT_TRUE(at::equal(at_second->inputs[0], input + TwoBlocks::block(blocks.first(input))));
}

TEST(ResidualStream, OperatorHooksSeeTheCallsOfNorms) {
  const TwoBlocks blocks;
  CallsOfModules calls;
  const WatchOperators scope(calls);
  blocks.by_stream(at::randn({5, 6}, at::kDouble));
  EXPECT_EQ(calls.entered, (std::vector<const torch::nn::Module*>{&*blocks.first, &*blocks.second}));
}

TEST(ResidualStream, AddsTheNormOfAnOutput) {
  const TwoBlocks blocks;
  const auto by_stream = [&](const at::Tensor& x) {
    ResidualStream residual(x);
    residual.add_normed(TwoBlocks::block(residual.hidden_states()), blocks.first);
    residual.add_normed(TwoBlocks::block(residual.hidden_states()), blocks.second);
    return residual.hidden_states();
  };
  const auto by_equation = [&](at::Tensor x) {
    x = x + blocks.first(TwoBlocks::block(x));
    return x + blocks.second(TwoBlocks::block(x));
  };
  expect_equal(run(blocks, by_stream), run(blocks, by_equation));
}

TEST(ResidualStream, AddsBranchesThatNoNormReads) {
  const at::Tensor x = at::randn({3, 6}), y = at::randn({3, 6}), z = at::randn({3, 6});
  ResidualStream residual(x);
  EXPECT_TRUE(residual.hidden_states().is_same(x));
  residual.add(y);
  residual.add(z);
  EXPECT_TRUE(at::equal(residual.hidden_states(), x + y + z));
  EXPECT_TRUE(at::equal(residual.hidden_states(), x + y + z)) << "once each";
}

}  // namespace
}  // namespace lehr::nn
