#include "lehr/ops/linear_float8/linear_float8.h"

#include <ATen/ops/_scaled_mm.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/ops/float8/float8.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/weight_gradients.h"
#include "test/ops/against_reference.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops {
namespace {

using test::error_of;
using test::worst_error;
using testing::HasSubstr;

constexpr Float8Recipe kRecipes[] = {Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp};

// Relative to the largest value: one rounding per term for float64 and float32, one of the result for bfloat16.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : 1.0 / 128;
}

struct Gradients {
  at::Tensor output, input, weight, bias;
};

Gradients run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, const at::Tensor& g, Float8Recipe recipe) {
  const auto leaf = [](const at::Tensor& t) {
    return t.defined() ? t.detach().clone().set_requires_grad(true) : at::Tensor();
  };
  const at::Tensor input = leaf(x), weight = leaf(w), bias = leaf(b);
  const at::Tensor output = linear_float8(input, weight, bias, recipe);
  output.backward(g);
  return {output.detach(), input.grad(), weight.grad(), bias.defined() ? bias.grad() : at::Tensor()};
}

TEST(LinearFloat8, EqualsItsDefinitionForwardAndBackward) {
  at::manual_seed(1);
  for (const Float8Recipe recipe : kRecipes) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [rows, in, out] :
           {std::tuple{1, 1, 1}, std::tuple{1, 48, 16}, std::tuple{3, 17, 5}, std::tuple{64, 300, 129}}) {
        const at::Tensor x = at::randn({2, rows, in}, at::kDouble).to(dtype);
        const at::Tensor w = at::randn({out, in}, at::kDouble).to(dtype);
        const at::Tensor b = at::randn({out}, at::kDouble).to(dtype);
        const at::Tensor g = at::randn({2, rows, out}, at::kDouble).to(dtype);
        const auto flat = [](const at::Tensor& t) { return t.to(at::kDouble).reshape({-1, t.size(-1)}); };
        const auto [y, dx, dw] = reference::linear_float8(flat(x), w.to(at::kDouble), flat(g), recipe);
        for (const bool with_bias : {false, true}) {
          const Gradients found = run(x, w, with_bias ? b : at::Tensor(), g, recipe);
          EXPECT_EQ(found.output.sizes(), (std::vector<int64_t>{2, rows, out}));
          EXPECT_EQ(found.input.sizes(), x.sizes());
          const at::Tensor result = with_bias ? y + b.to(at::kDouble) : y;
          EXPECT_LE(worst_error(found.output.reshape({-1, out}), result), tolerance(dtype));
          EXPECT_LE(worst_error(found.input.reshape({-1, in}), dx), tolerance(dtype));
          EXPECT_LE(worst_error(found.weight, dw), tolerance(dtype));
          if (with_bias) {
            EXPECT_LE(worst_error(found.bias, flat(g).sum(0)), tolerance(dtype));
          }
          at::NoGradGuard no_grad;
          EXPECT_TRUE(at::equal(linear_float8(x, w, with_bias ? b : at::Tensor(), recipe), found.output));
        }
      }
    }
  }
}

// The error of rounding the operands: 2^-4 of an element, or 2^-17 of the largest of its row.
TEST(LinearFloat8, HasTheErrorOfRoundingItsOperands) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({50, 200}, at::kDouble) * at::randn({50, 1}, at::kDouble).exp();
  const at::Tensor w = at::randn({30, 200}, at::kDouble);
  const at::Tensor g = at::randn({50, 30}, at::kDouble);
  const auto bound = [](const at::Tensor& a, const at::Tensor& b) {  // error bound of a b^T
    const auto of_one = [](const at::Tensor& t) {
      return std::exp2(-4) * t.abs() + std::exp2(-17) * t.abs().amax(1, true);
    };
    return at::mm(of_one(a), b.abs().t()) + at::mm(a.abs(), of_one(b).t()) + at::mm(of_one(a), of_one(b).t());
  };
  const Gradients found = run(x, w, {}, g, Float8Recipe::rowwise);
  const auto expect_near = [&](const at::Tensor& got, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor exact = at::mm(a, b.t());
    EXPECT_TRUE((got - exact).abs().le(bound(a, b)).all().item<bool>());
    // The errors of many terms cancel: on average 2.6 % of an element, for two operands.
    const double relative = ((got - exact).norm() / exact.norm()).item<double>();
    EXPECT_LT(relative, 0.05);
    EXPECT_GT(relative, 0.01) << "operands were not rounded";
  };
  expect_near(found.output, x, w);
  expect_near(found.input, g, w.t());
  expect_near(found.weight, g.t(), x.t());
}

TEST(LinearFloat8, WithGwHpTheWeightGradientIsInFullPrecision) {
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({40, 32}, dtype), w = at::randn({48, 32}, dtype), g = at::randn({40, 48}, dtype);
    const at::Tensor weight = w.clone().set_requires_grad(true);
    ops::linear(x, weight).backward(g);
    EXPECT_TRUE(at::equal(run(x, w, {}, g, Float8Recipe::rowwise_with_gw_hp).weight, weight.grad()));
    EXPECT_FALSE(at::equal(run(x, w, {}, g, Float8Recipe::rowwise).weight, weight.grad()));
  }
}

// Each token has its own scale, so the other tokens of a call affect nothing but the weight gradients of `rowwise`, in
// which a token much smaller than another keeps fewer bits.
TEST(LinearFloat8, ComputesEachTokenIndependently) {
  at::manual_seed(4);
  at::Tensor x = at::randn({24, 32}, at::kDouble);
  x.narrow(0, 10, 14).mul_(std::exp2(-12));
  const at::Tensor w = at::randn({16, 32}, at::kDouble);
  const at::Tensor g = at::randn({24, 16}, at::kDouble);
  for (const Float8Recipe recipe : kRecipes) {
    const Gradients all = run(x, w, {}, g, recipe);
    const Gradients first = run(x.narrow(0, 0, 10), w, {}, g.narrow(0, 0, 10), recipe);
    const Gradients rest = run(x.narrow(0, 10, 14), w, {}, g.narrow(0, 10, 14), recipe);
    EXPECT_LE(worst_error(at::cat({first.output, rest.output}), all.output), 1e-13);
    EXPECT_LE(worst_error(at::cat({first.input, rest.input}), all.input), 1e-13);
    const double parts = worst_error(first.weight + rest.weight, all.weight);
    if (recipe == Float8Recipe::rowwise) {
      EXPECT_GT(parts, 1e-8);
      EXPECT_LT(parts, 1e-4);
    } else {
      EXPECT_LE(parts, 1e-13);
    }
  }
}

TEST(LinearFloat8, KeepsZerosAndPropagatesNonFiniteTokens) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = at::randn({6, 32}, dtype);
    const at::Tensor w = at::randn({16, 32}, dtype), g = at::randn({6, 16}, dtype);
    x[2].zero_();
    const Gradients zeros = run(x, w, {}, g, Float8Recipe::rowwise);
    EXPECT_TRUE(zeros.output[2].eq(0).all().item<bool>());
    EXPECT_TRUE(zeros.weight.isfinite().all().item<bool>());
    EXPECT_TRUE(run(x, w, {}, at::zeros_like(g), Float8Recipe::rowwise).weight.eq(0).all().item<bool>());
    for (const double wrong : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      x[4][7] = wrong;
      const Gradients found = run(x, w, {}, g, Float8Recipe::rowwise);
      EXPECT_TRUE(found.output[4].isnan().all().item<bool>()) << "the token's results";
      EXPECT_EQ(found.output.isnan().sum().item<int64_t>(), 16) << "and no others";
      EXPECT_TRUE(found.weight.select(1, 7).isnan().all().item<bool>()) << "of all tokens together";
      at::Tensor bad = g.clone();
      bad[1][3] = wrong;
      EXPECT_TRUE(run(at::ones_like(x), w, {}, bad, Float8Recipe::rowwise).input[1].isnan().all().item<bool>());
    }
  }
}

TEST(LinearFloat8, LeavesFrozenInputsWithoutGradient) {
  const at::Tensor x = at::randn({4, 16});
  const at::Tensor w = at::randn({16, 16}).set_requires_grad(true);
  linear_float8(x, w).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
  const at::Tensor y = at::randn({4, 16}).set_requires_grad(true);
  linear_float8(y, w.detach()).sum().backward();
  EXPECT_TRUE(y.grad().defined());
}

TEST(LinearFloat8, AcceptsZeroRows) {
  const at::Tensor x = at::empty({0, 16}).set_requires_grad(true), w = at::randn({32, 16}).set_requires_grad(true);
  const at::Tensor y = linear_float8(x, w);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 32}));
  y.backward(at::empty({0, 32}));
  EXPECT_TRUE(w.grad().eq(0).all().item<bool>());
}

TEST(LinearFloat8, SplitBackwardHasTheSameBits) {
  at::manual_seed(6);
  for (const Float8Recipe recipe : kRecipes) {
    const at::Tensor x = at::randn({20, 16}).set_requires_grad(true);
    const at::Tensor w1 = at::randn({32, 16}).set_requires_grad(true), w2 = at::randn({16, 32}).set_requires_grad(true);
    const auto forward = [&] {
      return linear_float8(linear_float8(x, w1, {}, recipe).tanh(), w2, {}, recipe).square().sum();
    };
    const auto take = [&] {
      std::vector<at::Tensor> gradients;
      for (at::Tensor leaf : {x, w1, w2}) {
        gradients.push_back(leaf.grad());
        leaf.mutable_grad().reset();
      }
      return gradients;
    };
    forward().backward();
    const auto wanted = take();
    const auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor loss;
    {
      const WeightGradients::Scope scope(wgrads);
      loss = forward();
    }
    wgrads->backward_input({loss});
    EXPECT_EQ(wgrads->size(), 2U);
    EXPECT_FALSE(w1.grad().defined());
    wgrads->backward_weight();
    const auto found = take();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], wanted[i])) << i;
    }
  }
}

TEST(LinearFloat8, RefusesInvalidShapesAndTypes) {
  const at::Tensor w = at::randn({32, 16});
  EXPECT_THAT(
      error_of([&] {
        linear_float8(at::randn({4, 3}), w);
      }),
      HasSubstr("linear_float8: expected an input of Float 16 in its last dimension, found Float 4x3"));
  EXPECT_THAT(error_of([&] { linear_float8(at::randn({4, 16}, at::kDouble), w); }), HasSubstr("found Double 4x16"));
  const at::Tensor x = at::randn({4, 16}).set_requires_grad(true);
  EXPECT_THAT(
      error_of([&] { torch::autograd::grad({linear_float8(x, w).sum()}, {x}, {}, true, /*create_graph=*/true); }),
      HasSubstr("linear_float8: its backward pass cannot be differentiated again"));
  EXPECT_NO_THROW(require_float8(at::kCPU, at::kFloat, "float8.enable"));
  EXPECT_THAT(
      error_of([&] { require_float8(at::kMPS, at::kFloat, "float8.enable"); }),
      HasSubstr("float8.enable: float8 matmuls run on CPUs and NVIDIA GPUs, found mps"));
}

// The operands for all rows on a GPU: values, and the scales by which at::_scaled_mm multiplies a product. ATen's CPU
// kernel takes one scale per matrix, so each row is a matrix here. Only the order of float32 sums differs.
TEST(LinearFloat8, RoundsToTheValuesAndScalesOfScaledMm) {
  at::manual_seed(8);
  const at::Tensor a = at::randn({5, 64}) * at::randn({5, 1}).mul(5).exp();
  const at::Tensor b = at::randn({3, 64}) * at::randn({3, 1}).mul(5).exp();
  const Float8Rows left = to_float8_rows(a), right = to_float8_rows(b);
  const at::Tensor x = round_rows_to_float8(a).to(at::kDouble);  // by the CPU's own kernel
  const at::Tensor w = round_rows_to_float8(b).to(at::kDouble);
  for (int64_t i = 0; i < a.size(0); ++i) {
    for (int64_t j = 0; j < b.size(0); ++j) {
      const double found = at::_scaled_mm(
                               left.values.narrow(0, i, 1),
                               right.values.narrow(0, j, 1).t(),
                               left.inverse_scales[i],
                               right.inverse_scales[j],
                               /*bias=*/{},
                               /*scale_result=*/{},
                               at::kFloat)
                               .item<double>();
      const double summands = (x[i].abs() * w[j].abs()).sum().item<double>();
      EXPECT_NEAR(found, (x[i] * w[j]).sum().item<double>(), 1e-6 * summands) << i << ", " << j;
    }
  }
}

// Compares with the results of the CPU, on a GPU if this machine has one that multiplies float8.
TEST(LinearFloat8, EqualsItsDefinitionOnAGpu) {
  if (const auto reason = why_no_gpu(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  if (const auto problem = error_of([] { require_float8(at::kCUDA, at::kBFloat16, "gpu"); }); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  cuda::open_kernels();  // without kernels, the definition rounds
  at::manual_seed(7);
  for (const Float8Recipe recipe : kRecipes) {
    for (const int64_t rows : {1, 16, 77, 128}) {  // padded unless a multiple of 16
      const at::Tensor x = at::randn({rows, 256}, at::kBFloat16), w = at::randn({64, 256}, at::kBFloat16);
      const at::Tensor g = at::randn({rows, 64}, at::kBFloat16);
      const auto [y, dx, dw] =
          reference::linear_float8(x.to(at::kDouble), w.to(at::kDouble), g.to(at::kDouble), recipe);
      const Gradients found = run(x.cuda(), w.cuda(), {}, g.cuda(), recipe);
      EXPECT_LE(worst_error(found.output.cpu(), y), 1.0 / 64);  // with fast accumulation: some 13 bits
      EXPECT_LE(worst_error(found.input.cpu(), dx), 1.0 / 128);
      EXPECT_LE(worst_error(found.weight.cpu(), dw), 1.0 / 128);
    }
  }
  const at::Tensor odd = at::randn({8, 24}, at::kBFloat16).cuda();
  EXPECT_THAT(error_of([&] { linear_float8(odd, odd); }), HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace lehr::ops
