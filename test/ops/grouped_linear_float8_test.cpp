#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/ops/float8/float8.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/linear_float8/split_scales.h"
#include "lehr/ops/weight_gradients.h"
#include "test/ops/against_reference.h"

namespace lehr::ops {
namespace {

using test::error_of;
using test::worst_error;
using testing::HasSubstr;

constexpr Float8Recipe kRecipes[] = {Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp};

// The first, a middle and the last group have no rows.
at::Tensor some_ends() {
  return at::tensor({0, 3, 3, 12, 13, 13}, at::kInt);
}
constexpr int64_t kRows = 13;
constexpr int64_t kGroups = 6;

// Relative to the largest value: one rounding per term for float64 and float32, one of the result for bfloat16.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : 1.0 / 128;
}

struct Gradients {
  at::Tensor output, input, weight, bias;
};

Gradients run(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& ends,
    const at::Tensor& b,
    const at::Tensor& g,
    Float8Recipe recipe) {
  const auto leaf = [](const at::Tensor& t) {
    return t.defined() ? t.detach().clone().set_requires_grad(true) : at::Tensor();
  };
  const at::Tensor input = leaf(x), weight = leaf(w), bias = leaf(b);
  const at::Tensor output = grouped_linear_float8(input, weight, ends, bias, recipe);
  output.backward(g);
  return {output.detach(), input.grad(), weight.grad(), bias.defined() ? bias.grad() : at::Tensor()};
}

// Rows and weights of magnitudes from 1e-3 to 1e3, so that scales matter.
at::Tensor spread(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> rows(sizes.begin(), sizes.end());
  rows.back() = 1;
  return (at::randn(sizes, at::kDouble) * at::randn(rows, at::kDouble).mul(3).exp()).to(dtype);
}

TEST(GroupedLinearFloat8, EqualsItsDefinitionForwardAndBackward) {
  at::manual_seed(1);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  for (const Float8Recipe recipe : kRecipes) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 1}, {48, 16}, {17, 5}, {300, 129}}) {
        const at::Tensor x = spread({kRows, in}, dtype), w = spread({kGroups, out, in}, dtype);
        const at::Tensor b = spread({kGroups, out}, dtype), g = spread({kRows, out}, dtype);
        const auto [y, dx, dw] = reference::grouped_linear_float8(wide(x), wide(w), some_ends(), wide(g), recipe);
        for (const bool with_bias : {false, true}) {
          const at::Tensor added = with_bias ? b : at::Tensor();
          const Gradients found = run(x, w, some_ends(), added, g, recipe);
          // The rows of a group have its bias.
          const at::Tensor groups = at::tensor({1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4}, at::kLong);
          const at::Tensor result = with_bias ? y + wide(b).index_select(0, groups) : y;
          EXPECT_LE(worst_error(found.output, result), tolerance(dtype));
          EXPECT_LE(worst_error(found.input, dx), tolerance(dtype));
          for (int64_t group = 0; group < kGroups; ++group) {  // whose magnitudes differ
            EXPECT_LE(worst_error(found.weight[group], dw[group]), tolerance(dtype)) << group;
          }
          EXPECT_TRUE(found.weight[2].eq(0).all().item<bool>()) << "a group without rows learns nothing";
          if (with_bias) {
            EXPECT_LE(worst_error(found.bias, at::zeros_like(wide(b)).index_add(0, groups, wide(g))), tolerance(dtype));
          }
          const at::NoGradGuard no_grad;
          EXPECT_TRUE(at::equal(grouped_linear_float8(x, w, some_ends(), added, recipe), found.output));
        }
      }
    }
  }
}

TEST(GroupedLinearFloat8, IsLinearFloat8OfEachExpert) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({8, 32}), w = at::randn({2, 16, 32}), g = at::randn({8, 16});
  const at::Tensor ends = at::tensor({5, 8}, at::kInt);
  for (const Float8Recipe recipe : kRecipes) {
    const Gradients found = run(x, w, ends, {}, g, recipe);
    for (const auto& [expert, first, count] : {std::tuple{0, 0, 5}, std::tuple{1, 5, 3}}) {
      const at::Tensor rows = x.narrow(0, first, count).clone().set_requires_grad(true);
      const at::Tensor weight = w[expert].clone().set_requires_grad(true);
      const at::Tensor output = linear_float8(rows, weight, {}, recipe);
      output.backward(g.narrow(0, first, count));
      EXPECT_LE(worst_error(found.output.narrow(0, first, count), output), 1e-6);
      EXPECT_LE(worst_error(found.input.narrow(0, first, count), rows.grad()), 1e-6);
      EXPECT_LE(worst_error(found.weight[expert], weight.grad()), 1e-6);
    }
  }
}

// The error of rounding the operands: 2.6 % of a product of two, as for linear layers.
TEST(GroupedLinearFloat8, HasTheErrorOfRoundingItsOperands) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({60, 200}, at::kDouble), w = at::randn({2, 30, 200}, at::kDouble);
  const at::Tensor g = at::randn({60, 30}, at::kDouble), ends = at::tensor({20, 60}, at::kInt);
  const at::Tensor input = x.clone().set_requires_grad(true), weight = w.clone().set_requires_grad(true);
  const at::Tensor output = grouped_linear(input, weight, ends);
  output.backward(g);
  for (const Float8Recipe recipe : kRecipes) {
    const Gradients found = run(x, w, ends, {}, g, recipe);
    const auto error = [](const at::Tensor& got, const at::Tensor& exact) {
      return ((got - exact).norm() / exact.norm()).item<double>();
    };
    for (const double one : {error(found.output, output.detach()), error(found.input, input.grad())}) {
      EXPECT_LT(one, 0.05);
      EXPECT_GT(one, 0.01) << "operands were not rounded";
    }
    const double of_weight = error(found.weight, weight.grad());
    EXPECT_LT(of_weight, recipe == Float8Recipe::rowwise ? 0.05 : 1e-15);
    EXPECT_GE(of_weight, recipe == Float8Recipe::rowwise ? 0.01 : 0);
  }
}

// A token has its own scale, and an expert's weight its own: neither the other rows nor the other experts of a rank
// change a result.
TEST(GroupedLinearFloat8, ResultsAreThoseOfEachExpertAlone) {
  at::manual_seed(4);
  const at::Tensor x = spread({9, 32}, at::kDouble), w = spread({3, 16, 32}, at::kDouble);
  const at::Tensor g = spread({9, 16}, at::kDouble);
  for (const Float8Recipe recipe : kRecipes) {
    const Gradients all = run(x, w, at::tensor({2, 6, 9}, at::kInt), {}, g, recipe);
    const Gradients last =
        run(x.narrow(0, 2, 7), w.narrow(0, 1, 2), at::tensor({4, 7}, at::kInt), {}, g.narrow(0, 2, 7), recipe);
    EXPECT_LE(worst_error(last.output, all.output.narrow(0, 2, 7)), 1e-14);
    EXPECT_LE(worst_error(last.input, all.input.narrow(0, 2, 7)), 1e-14);
    EXPECT_LE(worst_error(last.weight, all.weight.narrow(0, 1, 2)), 1e-14);
  }
}

// Two ranks have half of each expert's rows, and reduce the largest elements: the sum of their gradients is that of all
// rows, though the rows of one are so small that their own scales would keep more bits.
TEST(GroupedLinearFloat8, ScalesOfWeightGradientsAreThoseOfAllRanks) {
  at::manual_seed(5);
  const at::Tensor w = at::randn({2, 16, 32}, at::kDouble);
  const at::Tensor x = at::randn({8, 32}, at::kDouble), g = at::randn({8, 16}, at::kDouble);
  x.slice(0, 0, 8, 2).mul_(std::exp2(-12));
  const at::Tensor ends = at::tensor({4, 8}, at::kInt), half_ends = at::tensor({2, 4}, at::kInt);
  const Gradients whole = run(x, w, ends, {}, g, Float8Recipe::rowwise);
  const auto half = [&](int64_t rank) {
    return run(x.slice(0, rank, 8, 2), w, half_ends, {}, g.slice(0, rank, 8, 2), Float8Recipe::rowwise).weight;
  };
  EXPECT_GT(worst_error(half(0) + half(1), whole.weight), 1e-8) << "the test compares nothing";
  std::vector<at::Tensor> seen(2);
  at::Tensor sum;
  for (const bool first_pass : {true, false}) {
    std::vector<at::Tensor> gradients;
    for (const int64_t rank : {0, 1}) {
      auto split = c10::make_intrusive<Float8Split>();
      split->tokens = [&, rank](const at::Tensor& numbers) {
        ASSERT_EQ(numbers.sizes(), (std::vector<int64_t>{2 * (16 + 32)}));
        if (first_pass) {
          seen[static_cast<size_t>(rank)] = numbers.clone();
        } else {
          numbers.copy_(at::maximum(seen[0], seen[1]));
        }
      };
      const Float8SplitScope scope(split);
      gradients.push_back(half(rank));
    }
    sum = gradients[0] + gradients[1];
  }
  EXPECT_LE(worst_error(sum, whole.weight), 1e-14);
}

TEST(GroupedLinearFloat8, ReducesScalesWithoutRowsToo) {
  int calls = 0;
  auto split = c10::make_intrusive<Float8Split>();
  split->tokens = [&](const at::Tensor& numbers) {
    EXPECT_TRUE(numbers.eq(0).all().item<bool>());
    ++calls;
  };
  const Float8SplitScope scope(split);
  const at::Tensor none = at::zeros({2}, at::kInt), w = at::randn({2, 16, 32});
  const Gradients found = run(at::empty({0, 32}), w, none, {}, at::empty({0, 16}), Float8Recipe::rowwise);
  EXPECT_EQ(calls, 1) << "the other ranks wait for it";
  EXPECT_EQ(found.output.sizes(), (std::vector<int64_t>{0, 16}));
  EXPECT_TRUE(found.weight.eq(0).all().item<bool>());
}

TEST(GroupedLinearFloat8, AcceptsZeroRows) {
  const at::Tensor none = at::zeros({2}, at::kInt), w = at::randn({2, 16, 32}), b = at::randn({2, 16});
  for (const Float8Recipe recipe : kRecipes) {
    const Gradients found = run(at::empty({0, 32}), w, none, b, at::empty({0, 16}), recipe);
    EXPECT_EQ(found.output.sizes(), (std::vector<int64_t>{0, 16}));
    EXPECT_EQ(found.input.sizes(), (std::vector<int64_t>{0, 32}));
    EXPECT_TRUE(found.weight.eq(0).all().item<bool>());
    EXPECT_TRUE(found.bias.eq(0).all().item<bool>());
  }
}

TEST(GroupedLinearFloat8, PropagatesNonFiniteTokensWithinTheirExpert) {
  at::manual_seed(6);
  at::Tensor x = at::randn({6, 32});
  const at::Tensor w = at::randn({2, 16, 32}), g = at::randn({6, 16}), ends = at::tensor({3, 6}, at::kInt);
  for (const double wrong : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    x[4][7] = wrong;
    const Gradients found = run(x, w, ends, {}, g, Float8Recipe::rowwise);
    EXPECT_EQ(found.output.isnan().sum().item<int64_t>(), 16) << "the token's results";
    EXPECT_TRUE(found.weight[1].select(1, 7).isnan().all().item<bool>());
    EXPECT_TRUE(found.weight[0].isfinite().all().item<bool>()) << "another expert";
  }
}

TEST(GroupedLinearFloat8, LeavesFrozenOperandsWithoutGradient) {
  const at::Tensor ends = at::tensor({1, 4}, at::kInt);
  const at::Tensor x = at::randn({4, 16}), w = at::randn({2, 16, 16}).set_requires_grad(true);
  grouped_linear_float8(x, w, ends).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
  const at::Tensor y = at::randn({4, 16}).set_requires_grad(true);
  grouped_linear_float8(y, w.detach(), ends).sum().backward();
  EXPECT_TRUE(y.grad().defined());
}

TEST(GroupedLinearFloat8, SplitBackwardHasTheSameBits) {
  at::manual_seed(7);
  for (const Float8Recipe recipe : kRecipes) {
    const at::Tensor x = at::randn({kRows, 16}).set_requires_grad(true);
    const at::Tensor w = at::randn({kGroups, 32, 16}).set_requires_grad(true);
    const auto forward = [&] { return grouped_linear_float8(x.tanh(), w, some_ends(), {}, recipe).square().sum(); };
    const auto take = [](at::Tensor leaf) {
      const at::Tensor gradient = leaf.grad();
      leaf.mutable_grad().reset();
      return gradient;
    };
    forward().backward();
    const at::Tensor wanted_x = take(x), wanted_w = take(w);
    const auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor loss;
    {
      const WeightGradients::Scope scope(wgrads);
      loss = forward();
    }
    wgrads->backward_input({loss});
    EXPECT_EQ(wgrads->size(), 1U);
    EXPECT_FALSE(w.grad().defined());
    wgrads->backward_weight();
    EXPECT_TRUE(at::equal(take(x), wanted_x));
    EXPECT_TRUE(at::equal(take(w), wanted_w));
  }
}

TEST(GroupedLinearFloat8, RefusesInvalidShapesAndTypes) {
  const at::Tensor w = at::randn({6, 32, 16});
  EXPECT_THAT(
      error_of([&] {
        grouped_linear_float8(at::randn({kRows, 3}), w, some_ends());
      }),
      HasSubstr("grouped_linear_float8: expected rows of Float 16, found Float 13x3"));
  EXPECT_THAT(
      error_of([&] {
        grouped_linear_float8(at::randn({kRows, 16}), w, some_ends().to(at::kLong));
      }),
      HasSubstr("grouped_linear_float8: ends: expected 6 int32"));
  const at::Tensor x = at::randn({kRows, 16}).set_requires_grad(true);
  EXPECT_THAT(
      error_of([&] {
        torch::autograd::grad({grouped_linear_float8(x, w, some_ends()).sum()}, {x}, {}, true, /*create_graph=*/true);
      }),
      HasSubstr("grouped_linear_float8: its backward pass cannot be differentiated again"));
  EXPECT_NO_THROW(require_grouped_float8(at::kCPU, at::kFloat, "float8.moe_fqns"));
  EXPECT_THAT(
      error_of([&] { require_grouped_float8(at::kMPS, at::kBFloat16, "float8.moe_fqns"); }),
      HasSubstr("float8.moe_fqns: float8 matmuls run on CPUs and NVIDIA GPUs, found mps"));
  EXPECT_THAT(
      error_of([&] { require_grouped_float8(at::kCUDA, at::kFloat, "float8.moe_fqns"); }),
      HasSubstr("float8.moe_fqns: on a GPU the grouped matmuls of experts in float8 compute in bfloat16, found Float; "
                "set training.mixed_precision_param"));
}

}  // namespace
}  // namespace lehr::ops
