// A backward that is split into dgrad and wgrad equals a full backward, in float64: bit for bit where the order of sums
// is the same, to 1e-12 elsewhere.
#include "lehr/ops/weight_gradients.h"

#include <gtest/gtest.h>

#include "lehr/base/autograd_function.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/silu_mul/silu_mul.h"
#include "test/ops/gradients.h"

namespace lehr::ops {
namespace {
using test::take_gradients;
using test::Tensors;

at::Tensor leaf(at::IntArrayRef sizes, bool requires_grad = true) {
  return at::randn(sizes, at::kDouble).set_requires_grad(requires_grad);
}

struct SplitBackward {
  Tensors after_input = {};  // copies of the gradients of the leaves
  Tensors after_weight = {};
  size_t waited = 0;
};

// `forward` returns a scalar.
SplitBackward split_backward(const std::function<at::Tensor()>& forward, const Tensors& leaves) {
  const auto wgrads = std::make_shared<WeightGradients>();
  at::Tensor output;
  {
    const WeightGradients::Scope scope(wgrads);
    output = forward();
  }
  wgrads->backward_input({output});
  SplitBackward found{.waited = wgrads->size()};
  for (const at::Tensor& one : leaves) {
    found.after_input.push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
  }
  output.reset();  // now only the deferred work holds tensors
  wgrads->backward_weight();
  EXPECT_EQ(wgrads->size(), 0U);
  found.after_weight = take_gradients(leaves);
  return found;
}

// Compares a split backward with a full one, and returns the number of deferred matmuls.
size_t expect_equal_to_whole(const std::function<at::Tensor()>& forward, const Tensors& leaves, double tolerance = 0) {
  forward().backward();
  const Tensors expected = take_gradients(leaves);
  const SplitBackward found = split_backward(forward, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& gradient = found.after_weight[i];
    EXPECT_EQ(gradient.defined(), expected[i].defined()) << i;
    if (gradient.defined() && expected[i].defined()) {
      const double difference = (gradient - expected[i]).abs().max().item<double>();
      EXPECT_LE(difference, tolerance * expected[i].abs().max().item<double>()) << i;
    }
  }
  return found.waited;
}

at::Tensor some_ends() {
  return at::tensor({3, 3, 8, 9, 9}, at::kInt);  // the second and the last group have no rows
}

TEST(WeightGradients, OfEveryMatmulAreDeferredAndHaveTheSameBits) {
  at::manual_seed(1);
  const at::Tensor x = leaf({2, 3, 6}), w = leaf({4, 6}), b = leaf({4}), slope = at::randn({2, 3, 4}, at::kDouble);
  const at::Tensor rows = leaf({9, 6}), experts = leaf({5, 4, 6}), row_slope = at::randn({9, 4}, at::kDouble);
  struct Case {
    const char* name;
    std::function<at::Tensor()> forward;
    at::Tensor input, weight;
  };
  for (const Case& c :
       {Case{"linear", [&] { return (ops::linear(x, w) * slope).sum(); }, x, w},
        Case{"linear with bias", [&] { return (ops::linear(x, w, b) * slope).sum(); }, x, w},
        Case{
            "transposed input",
            [&] { return (ops::linear(x.transpose(0, 1), w) * slope.transpose(0, 1)).sum(); },
            x,
            w},
        Case{
            "grouped_linear",
            [&] { return (grouped_linear(rows, experts, some_ends()) * row_slope).sum(); },
            rows,
            experts}}) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(expect_equal_to_whole(c.forward, {c.input, c.weight, b}), 1U);
    const SplitBackward split = split_backward(c.forward, {c.input, c.weight, b});
    EXPECT_TRUE(split.after_input[0].defined()) << "the input's gradient comes in dgrad";
    EXPECT_FALSE(split.after_input[1].defined()) << "the weight's gradient comes in wgrad";
  }
}

TEST(WeightGradients, OfALossOverAVocabularyAreNotDeferred) {
  at::manual_seed(1);
  const at::Tensor x = leaf({5, 3}), w = leaf({7, 3}), labels = at::tensor({1, 6, -100, 0, 2}, at::kLong);
  EXPECT_EQ(expect_equal_to_whole([&] { return linear_cross_entropy(x, w, labels).sum(); }, {x, w}), 0U);
}

TEST(WeightGradients, OfAWeightThatIsUsedTwiceAreSummed) {
  at::manual_seed(2);
  const at::Tensor x = leaf({3, 4}), a = leaf({4, 4}), b = leaf({4, 4});
  // In parallel, in series with another weight in between, and both with a residual.
  EXPECT_EQ(expect_equal_to_whole([&] { return (ops::linear(x, a) * ops::linear(x.sin(), a)).sum(); }, {x, a}), 2U);
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] { return ops::linear(ops::linear(ops::linear(x, a), b), a).square().sum(); }, {x, a, b}),
      3U);
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] {
            const at::Tensor y = x + ops::linear(ops::linear(x, a), b);
            return (y + ops::linear(y, a)).square().sum();
          },
          {x, a, b}),
      3U);
}

// The gradient of the other use is computed first, whatever the order of the two in the graph.
TEST(WeightGradients, OfAWeightThatOtherOperatorsUseTooAreSummed) {
  at::manual_seed(3);
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4}), table = leaf({4, 4});
  const at::Tensor ids = at::tensor({0, 3, 3}, at::kLong);
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] { return ops::linear(x + at::embedding(w, ids), w).square().sum() + w.sin().sum(); }, {x, w}, 1e-12),
      1U);
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] {
            return ops::linear(x, table).square().sum() +
                   grouped_linear(x, table.view({1, 4, 4}), at::tensor({3}, at::kInt)).sin().sum();
          },
          {x, table},
          1e-12),
      1U)
      << "the view is no weight whose gradient could wait";
}

TEST(WeightGradients, AreDeferredOnlyWhereTheyAreRequired) {
  at::manual_seed(4);
  const at::Tensor x = leaf({3, 4}), w = leaf({5, 4}), frozen = leaf({4, 4}, false), idle = leaf({4, 4});
  const at::Tensor ids = at::randn({3, 4}, at::kDouble);  // an input without a gradient: a stage that begins with ids
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] {
            ops::linear(x, idle);  // its result is unused
            return ops::linear(ops::linear(x, frozen), w).square().sum();
          },
          {x, w, frozen, idle}),
      1U);
  EXPECT_EQ(
      expect_equal_to_whole([&] { return ops::linear(ops::linear(ids, idle), w).square().sum(); }, {w, idle}), 2U);
  EXPECT_EQ(expect_equal_to_whole([&] { return ops::linear(x, frozen).square().sum(); }, {x}), 0U);
}

// Weights that no path from the inputs of the stage reaches.
TEST(WeightGradients, AreComputedForWeightsThatDoNotDependOnTheInputs) {
  at::manual_seed(5);
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4}), side = leaf({4, 4});
  const at::Tensor constant = at::randn({3, 4}, at::kDouble);
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] { return (ops::linear(x, w) * ops::linear(constant, side).tanh()).sum(); }, {x, w, side}),
      2U);
}

// Two weights share a factor, which has no node in common with the path of the inputs.
TEST(WeightGradients, OfComputedWeightsAreNotDeferred) {
  at::manual_seed(6);
  const at::Tensor x = leaf({3, 4}), p1 = leaf({4, 4}), p2 = leaf({4, 4}), p3 = leaf({4, 4}), big = leaf({8, 4});
  EXPECT_EQ(
      expect_equal_to_whole(
          [&] { return ops::linear(ops::linear(x, p1 * p3).tanh(), p2 * p3).square().sum(); }, {x, p1, p2, p3}),
      0U);
  EXPECT_EQ(expect_equal_to_whole([&] { return ops::linear(x, big.narrow(0, 2, 4)).square().sum(); }, {x, big}), 0U);
  EXPECT_EQ(
      expect_equal_to_whole([&] { return ops::linear(x.to(at::kFloat), p1.to(at::kFloat)).square().sum(); }, {x, p1}),
      0U);
}

// Returns an undefined gradient.
struct Stop : AutogradFunction<Stop> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors&) { return {at::Tensor()}; }
};

TEST(WeightGradients, AreZeroIfNoGradientArrives) {
  at::manual_seed(7);
  const at::Tensor x = leaf({3, 4}), w = leaf({4, 4});
  EXPECT_EQ(expect_equal_to_whole([&] { return Stop::apply(ops::linear(x, w)).sum() + x.square().sum(); }, {x, w}), 1U);
}

// Random graphs of residuals, shared weights and gates: saved tensors must not change when autograd adds in place.
TEST(WeightGradients, EqualAFullBackwardInRandomGraphs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    at::manual_seed(seed);
    const Tensors leaves{leaf({5, 3}), leaf({3, 3}), leaf({3, 3}), leaf({2, 3, 3})};
    const at::Tensor choices = at::randint(0, 1000, {24}, at::kLong);
    const auto forward = [&] {
      Tensors values{leaves[0]};
      for (int64_t i = 0; i < 12; ++i) {
        const auto choice = choices[2 * i].item<int64_t>();
        const at::Tensor& a = values[static_cast<size_t>(choice) % values.size()];
        const at::Tensor& b = values[static_cast<size_t>(choices[2 * i + 1].item<int64_t>()) % values.size()];
        switch (choice % 5) {
          case 0:
            values.push_back(ops::linear(a, leaves[1]));
            break;
          case 1:
            values.push_back(ops::linear(a, leaves[2]) + b);
            break;
          case 2:
            values.push_back(grouped_linear(a, leaves[3], at::tensor({2, 5}, at::kInt)));
            break;
          case 3:
            values.push_back(silu_mul(a, b));
            break;
          default:
            values.push_back(a + b);
        }
      }
      return (at::stack(values).sum(0) + values.back()).tanh().sum();
    };
    expect_equal_to_whole(forward, leaves, 1e-12);
  }
}

// Returns its tensors to the graph and counts its backward calls, like an FSDP unit.
struct Given : AutogradFunction<Given> {
  static Tensors forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b, int* runs) {
    ctx->saved_data["runs"] = reinterpret_cast<int64_t>(runs);
    ctx->set_materialize_grads(false);
    return {a * 2, b * 2};
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grads) {
    ++*reinterpret_cast<int*>(ctx->saved_data["runs"].toInt());
    const auto twice = [](const at::Tensor& gradient) { return gradient.defined() ? gradient * 2 : gradient; };
    return {twice(grads[0]), twice(grads[1]), at::Tensor()};
  }
};

TEST(WeightGradients, ReachNodesThatMayRunTwice) {
  at::manual_seed(11);
  const at::Tensor x = leaf({3, 4}), a = leaf({4, 4}), b = leaf({4, 4});
  int runs = 0;
  const auto forward = [&] {
    const Tensors given = Given::apply(a, b, &runs);
    if (const auto current = WeightGradients::current()) {
      current->allow(given[0].grad_fn());
    }
    return ops::linear(ops::linear(x * given[0].sum(), given[0]).tanh(), given[1]).square().sum();
  };
  EXPECT_EQ(expect_equal_to_whole(forward, {x, a, b}, 1e-12), 2U);
  EXPECT_EQ(runs, 1 + 2) << "whole, and once for each half";
}

}  // namespace
}  // namespace lehr::ops
