// silu_mul, the gate of SwiGLU, compared with its definition.
#include "lehr/ops/silu_mul/silu_mul.h"

#include <gmock/gmock.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

const Operator kFast = [](const Tensors& in) -> Tensors { return {silu_mul(in[0], in[1])}; };
const Operator kDefinition = [](const Tensors& in) -> Tensors { return {reference::silu_mul(in[0], in[1])}; };

TEST(SiluMul, EqualsItsDefinitionForAllSizesAndTypes) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const int64_t size : {0, 1, 7, 17, 127, 4099, 40000}) {
      const Tensors inputs = {random_tensor({size}, type, 4), random_tensor({size}, type)};
      expect_equal_to_definition(where + " " + std::to_string(size), kFast, kDefinition, inputs);
    }
  });
}

TEST(SiluMul, IsAccurateAtBothEndsOfTheRange) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const at::Tensor gate =
        at::tensor({-1e30, -800.0, -100.0, -88.5, -20.0, 0.0, 20.0, 100.0, 800.0, 1e30}, at::kDouble);
    for (const double g : {-1e30, -800.0, -100.0, -88.5, -20.0, 0.0, 20.0, 100.0, 800.0, 1e30}) {
      const at::Tensor one = at::full({3}, g, at::kDouble).to(type);
      const double value = silu_mul(one, at::ones_like(one))[0].item<double>();
      const double wide = one[0].item<double>();
      const double expected = wide / (1 + std::exp(-wide));
      // Absolute below 1, relative above: far to the left the result is almost zero.
      EXPECT_NEAR(value, expected, std::max(1.0, std::abs(expected)) * tolerance(type)) << where << " at " << g;
    }
    const at::Tensor nan = at::full({3}, std::nan(""), type);
    EXPECT_TRUE(silu_mul(nan, at::ones_like(nan)).isnan().all().item<bool>()) << where;
  });
}

TEST(SiluMul, LeavesFrozenInputsWithoutGradient) {
  const Tensors inputs = {random_tensor({9, 33}, at::kFloat), random_tensor({9, 33}, at::kFloat)};
  expect_equal_to_definition("frozen gate", kFast, kDefinition, inputs, {true, false});
  expect_equal_to_definition("frozen up", kFast, kDefinition, inputs, {false, true});
}

TEST(SiluMul, AcceptsHalvesOfOneTensor) {
  const at::Tensor both = random_tensor({5, 66}, at::kFloat);
  expect_equal_to_definition("halves", kFast, kDefinition, {both.narrow(1, 0, 33), both.narrow(1, 33, 33)});
}

TEST(SiluMul, RefusesInvalidShapesAndTypes) {
  EXPECT_THAT(
      error_of([&] {
        silu_mul(at::ones({2, 3}), at::ones({3, 2}));
      }),
      testing::HasSubstr("found Float 2x3 and Float 3x2"));
}

}  // namespace
}  // namespace lehr::ops::test
