// clamped_swiglu, the gate of gpt-oss, compared with its definition.
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"

#include <gmock/gmock.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

Operator fast(const SwiGLUClamp& clamp) {
  return [clamp](const Tensors& in) -> Tensors { return {clamped_swiglu(in[0], clamp)}; };
}
Operator definition(const SwiGLUClamp& clamp) {
  return [clamp](const Tensors& in) -> Tensors { return {reference::clamped_swiglu(in[0], clamp)}; };
}

TEST(ClampedSwiGLU, EqualsItsDefinitionForAllSizesAndTypes) {
  const SwiGLUClamp cuts{.limit = 2.5, .alpha = 1.3};
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const int64_t size : {0, 1, 7, 17, 127, 4099, 40000}) {
      const Tensors input = {random_tensor({2 * size}, type, 3)};
      expect_equal_to_definition(where + " " + std::to_string(size), fast({}), definition({}), input);
      expect_equal_to_definition(where + " cut " + std::to_string(size), fast(cuts), definition(cuts), input);
    }
  });
}

// Written out, for one pair; the limits are exact in every type.
TEST(ClampedSwiGLU, ClampsTheGateAboveAndTheOtherHalfOnBothSides) {
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const double gate : {-1e30, -90.0, -8.0, 0.5, 7.0, 7.5, 1e30}) {
      for (const double up : {-1e30, -7.5, -7.0, 0.25, 7.0, 8.0}) {
        const at::Tensor pair = at::tensor({gate, up}, at::kDouble).to(type).set_requires_grad(true);
        const double g = std::min(pair[0].item<double>(), 7.0);
        const double u = std::clamp(pair[1].item<double>(), -7.0, 7.0);
        const double s = 1 / (1 + std::exp(-1.702 * g));
        const at::Tensor found = clamped_swiglu(pair, {});
        EXPECT_NEAR(found.item<double>(), (u + 1) * g * s, tolerance(type) * 60) << where << gate << " " << up;
        found.sum().backward();
        const double slope = gate > 7 ? 0 : (u + 1) * s * (1 + 1.702 * g * (1 - s));
        EXPECT_NEAR(pair.grad()[0].item<double>(), std::isnan(slope) ? 0 : slope, tolerance(type) * 60)
            << where << gate;
        EXPECT_NEAR(pair.grad()[1].item<double>(), std::abs(up) > 7 ? 0 : g * s, tolerance(type) * 60) << where << up;
      }
    }
    const at::Tensor nan = at::full({4}, std::nan(""), type);
    EXPECT_TRUE(clamped_swiglu(nan, {}).isnan().all().item<bool>()) << where;
  });
}

TEST(ClampedSwiGLU, AcceptsAPartOfATensor) {
  const at::Tensor wide = random_tensor({5, 66}, at::kFloat);
  expect_equal_to_definition("part", fast({}), definition({}), {wide.narrow(1, 3, 34)});
  EXPECT_EQ(clamped_swiglu(at::ones({2, 3, 8}), {}).sizes(), (std::vector<int64_t>{2, 3, 4}));
}

TEST(ClampedSwiGLU, RefusesAnOddWidthAndIntegers) {
  const auto problem = [](const at::Tensor& input) { return error_of([&] { clamped_swiglu(input, {}); }); };
  EXPECT_THAT(
      problem(at::ones({2, 3})),
      testing::HasSubstr("expected pairs of a floating type in the last dimension, found Float 2x3"));
  EXPECT_THAT(problem(at::ones({2, 4}, at::kInt)), testing::HasSubstr("found Int 2x4"));
}

}  // namespace
}  // namespace lehr::ops::test
