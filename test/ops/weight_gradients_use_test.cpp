// The use of dgrad and wgrad: their order, hooks and callbacks, and errors.
#include <gmock/gmock.h>

#include <stdexcept>

#include "lehr/base/autograd_function.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/weight_gradients.h"
#include "test/base/error_of.h"
#include "test/ops/gradients.h"

namespace lehr::ops {
namespace {

using test::take_gradients;
using test::Tensors;
using testing::HasSubstr;

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).set_requires_grad(true);
}

TEST(WeightGradients, OfSeveralMicrobatchesMayRunInAnyOrder) {
  at::manual_seed(8);
  const at::Tensor w1 = leaf({6, 4}), w2 = leaf({4, 6});
  const Tensors leaves{w1, w2};
  Tensors inputs;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(leaf({5, 4}));
  }
  const auto forward = [&](size_t i) { return ops::linear(ops::linear(inputs[i], w1).tanh(), w2).square().sum(); };
  for (size_t i = 0; i < 3; ++i) {
    forward(i).backward();
  }
  const Tensors expected = take_gradients(leaves);
  std::vector<std::shared_ptr<WeightGradients>> wgrads;
  Tensors outputs;
  const auto do_f = [&](size_t i) {
    wgrads.push_back(std::make_shared<WeightGradients>());
    const WeightGradients::Scope scope(wgrads.back());
    outputs.push_back(forward(i));
  };
  do_f(0), do_f(1);
  wgrads[0]->backward_input({outputs[0]});
  do_f(2);
  wgrads[1]->backward_input({outputs[1]});
  wgrads[0]->backward_weight();
  wgrads[2]->backward_input({outputs[2]});
  wgrads[1]->backward_weight();
  wgrads[2]->backward_weight();
  const Tensors found = take_gradients(leaves);
  EXPECT_TRUE(at::equal(found[0], expected[0]));
  EXPECT_TRUE(at::equal(found[1], expected[1]));
}

TEST(WeightGradients, AccumulateAndRunHooksOnce) {
  at::manual_seed(9);
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  w.mutable_grad() = at::ones_like(w);
  int calls = 0, without = 0;
  w.register_hook([&](const at::Tensor& gradient) {
    (gradient.defined() ? calls : without) += 1;
    return gradient.defined() ? gradient * 2 : gradient;
  });
  const auto wgrads = std::make_shared<WeightGradients>();
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = (ops::linear(x, w) + ops::linear(x.sin(), w)).sum();
  }
  wgrads->backward_input({output});
  EXPECT_TRUE(at::equal(w.grad(), at::ones_like(w)));
  wgrads->backward_weight();
  EXPECT_EQ(calls, 1) << "the sum, once";
  EXPECT_EQ(without, 1) << "in dgrad";
  const at::Tensor expected = 1 + 2 * (x + x.sin()).detach().sum(0).expand({4, 4});
  EXPECT_TRUE(at::allclose(w.grad(), expected, 1e-12, 1e-14));
}

TEST(WeightGradients, ReleaseTheirTensors) {
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto wgrads = std::make_shared<WeightGradients>();
  const at::Tensor hidden = x.detach().clone();
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = ops::linear(hidden, w).sum();
  }
  wgrads->backward_input({output});
  output.reset();
  EXPECT_GT(hidden.storage().use_count(), 1U) << "the product reads it";
  wgrads->backward_weight();
  EXPECT_EQ(hidden.storage().use_count(), 1U);
}

TEST(WeightGradients, AreNotDeferredInAFullBackward) {
  at::manual_seed(10);
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto wgrads = std::make_shared<WeightGradients>();
  const auto forward = [&] {
    const WeightGradients::Scope scope(wgrads);
    return ops::linear(x, w).square().sum();
  };
  forward().backward();
  EXPECT_EQ(wgrads->size(), 0U);
  const Tensors once = take_gradients({x, w});
  EXPECT_TRUE(once[1].defined());
  at::Tensor of_dead_object;
  {
    const WeightGradients::Scope scope(std::make_shared<WeightGradients>());
    of_dead_object = ops::linear(x, w).square().sum();
  }
  of_dead_object.backward();
  EXPECT_TRUE(at::equal(take_gradients({x, w})[1], once[1])) << "nobody could run a second half";
}

TEST(WeightGradients, RunCallbacksAfterwardsInOrder) {
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto wgrads = std::make_shared<WeightGradients>();
  std::vector<std::string> order;
  w.register_hook([&](const at::Tensor& gradient) {
    if (gradient.defined()) {
      order.emplace_back("gradient");
    }
  });
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = ops::linear(x, w).sum();
  }
  wgrads->backward_input({output});
  wgrads->then([&] { order.emplace_back("first"); });
  wgrads->then([&] { order.emplace_back("second"); });
  wgrads->backward_weight();
  EXPECT_THAT(order, testing::ElementsAre("gradient", "first", "second"));
}

TEST(WeightGradients, RefuseDgradAndWgradOutOfOrder) {
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto wgrads = std::make_shared<WeightGradients>();
  const auto forward = [&] {
    const WeightGradients::Scope scope(wgrads);
    return ops::linear(x, w).sum();
  };
  const at::Tensor output = forward();
  EXPECT_THAT(error_of([&] { wgrads->backward_weight(); }), HasSubstr("backward_weight() before backward_input()"));
  wgrads->backward_input({output});
  EXPECT_THAT(error_of([&] { wgrads->backward_input({forward()}); }), HasSubstr("that had one already"));
  wgrads->backward_weight();
  EXPECT_THAT(error_of([&] { wgrads->backward_weight(); }), HasSubstr("of a micro-batch that has ended"));
}

TEST(WeightGradients, ReportAMissingWgrad) {
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto run_dgrad = [&] {
    auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor output;
    {
      const WeightGradients::Scope scope(wgrads);
      output = (ops::linear(x, w) + ops::linear(x, w)).sum();
    }
    wgrads->backward_input({output});
    return wgrads;
  };
  run_dgrad();  // discarded without wgrad
  EXPECT_THAT(error_of(run_dgrad), HasSubstr("2 of an earlier micro-batch were never computed"));
  run_dgrad()->backward_weight();  // reported only once
  run_dgrad()->discard();
  run_dgrad()->backward_weight();
  try {
    const auto wgrads = run_dgrad();
    throw std::runtime_error("elsewhere");
  } catch (const std::runtime_error&) {
  }
  run_dgrad()->backward_weight();  // an exception explains the missing wgrad
}

struct Failing : AutogradFunction<Failing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors&) { throw std::runtime_error("no"); }
};

TEST(WeightGradients, AreDiscardedIfABackwardFails) {
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  const auto wgrads = std::make_shared<WeightGradients>();
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = ops::linear(Failing::apply(x), w).sum();
  }
  EXPECT_THROW(wgrads->backward_input({output}), std::runtime_error);
  EXPECT_EQ(wgrads->size(), 0U);
  EXPECT_THAT(error_of([&] { wgrads->backward_weight(); }), HasSubstr("that has ended"));
}

}  // namespace
}  // namespace lehr::ops
