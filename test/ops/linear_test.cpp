#include "lehr/ops/linear/linear.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "lehr/base/error.h"

namespace lehr::ops {
namespace {

// Relative to the largest value: one rounding per term for float64 and float32, one of the result for bfloat16.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-5 : 2e-2;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double relative) {
  const double scale = want.to(at::kDouble).abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>(), relative * scale);
}

TEST(Linear, EqualsItsDefinitionForwardAndBackward) {
  at::manual_seed(1);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool with_bias : {false, true}) {
      for (const auto& [batch, in, out] : {std::tuple{1, 1, 1}, std::tuple{3, 17, 5}, std::tuple{64, 300, 129}}) {
        const at::Tensor x = at::randn({2, batch, in}, at::kDouble);
        const at::Tensor w = at::randn({out, in}, at::kDouble);
        const at::Tensor b = at::randn({out}, at::kDouble);
        const at::Tensor g = at::randn({2, batch, out}, at::kDouble);
        auto run = [&](at::ScalarType type, auto&& function) {
          std::vector<at::Tensor> inputs;
          for (const at::Tensor& t : {x, w, b}) {
            inputs.push_back(t.to(dtype).to(type).detach().clone().set_requires_grad(true));
          }
          const at::Tensor y = function(inputs[0], inputs[1], with_bias ? inputs[2] : at::Tensor());
          y.backward(g.to(dtype).to(type));
          return std::vector<at::Tensor>{
              y.detach(), inputs[0].grad(), inputs[1].grad(), with_bias ? inputs[2].grad() : y};
        };
        const auto got = run(dtype, [](const auto&... args) { return ops::linear(args...); });
        const auto want = run(at::kDouble, [](const auto&... args) { return at::linear(args...); });
        for (size_t i = 0; i < got.size(); ++i) {
          expect_near(got[i], want[i], tolerance(dtype));
        }
      }
    }
  }
}

TEST(Linear, LeavesFrozenInputsWithoutGradient) {
  const at::Tensor x = at::randn({4, 3});
  const at::Tensor w = at::randn({2, 3}).set_requires_grad(true);
  ops::linear(x, w).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
}

TEST(Linear, RefusesInvalidShapes) {
  EXPECT_THROW(ops::linear(at::randn({4, 3}), at::randn({2, 5})), Error);
  EXPECT_THROW(ops::linear(at::randn({4, 3}), at::randn({2, 3}, at::kDouble)), Error);
}

TEST(Linear, AcceptsZeroRows) {
  EXPECT_EQ(ops::linear(at::empty({0, 3}), at::randn({2, 3})).sizes(), (std::vector<int64_t>{0, 2}));
}

}  // namespace
}  // namespace lehr::ops
