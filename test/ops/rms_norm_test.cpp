// RMSNorm compared with its definition.
#include "lehr/ops/rms_norm/rms_norm.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

// Large, so that the gradient of very short rows is not only cancellation.
constexpr double kEps = 0.3;
const Operator kFast = [](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps)}; };
const Operator kDefinition = [](const Tensors& in) -> Tensors { return {reference::rms_norm(in[0], in[1], kEps)}; };

TEST(RmsNorm, NormalizesEachRowToUnitMeanSquare) {
  const at::Tensor x = random_tensor({5, 64}, at::kDouble, 30);
  const at::Tensor y = rms_norm(x, at::ones({64}, at::kDouble), 0);
  // Rounding of 64 float64 squares.
  EXPECT_LE(worst_error(y.square().mean(-1), at::ones({5}, at::kDouble)), 1e-14);
}

TEST(RmsNorm, EqualsItsDefinitionForAllSizesAndTypes) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const int64_t size : {1, 7, 17, 64, 127, 1024, 4099}) {
      for (const int64_t rows : {1, 3, 130}) {
        if (size == 1 && rows == 130) {
          continue;  // one sum of 130 rounded terms may cancel almost completely
        }
        const Tensors inputs = {random_tensor({rows, size}, type), random_tensor({size}, type)};
        expect_equal_to_definition(
            where + " " + std::to_string(rows) + "x" + std::to_string(size),
            kFast,
            kDefinition,
            inputs,
            {},
            4);  // the weight's gradient sums rounded terms of either sign
      }
    }
  });
}

TEST(RmsNorm, RoundsInBfloat16LikeHuggingFace) {
  const at::Tensor x = random_tensor({200, 128}, at::kBFloat16);
  const at::Tensor weight = random_tensor({128}, at::kBFloat16);
  const at::Tensor fast = rms_norm(x, weight, kEps);
  const at::Tensor definition = reference::rms_norm(x, weight, kEps);
  // Sums in another order rarely move a value across a rounding border.
  EXPECT_LE((fast != definition).to(at::kDouble).mean().item<double>(), 1e-3);
}

TEST(RmsNorm, ZeroCenteredAddsOneToTheWeight) {
  const auto zero_centered = [](const Tensors& in) -> Tensors {
    return {rms_norm(in[0], in[1], kEps, NormWeight::zero_centered)};
  };
  const auto definition = [](const Tensors& in) -> Tensors {
    return {in[0] / (in[0].square().mean(-1, true) + kEps).sqrt() * (in[1] + 1)};
  };
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const int64_t size : {7, 64, 1027}) {
      const Tensors inputs = {random_tensor({9, size}, type), random_tensor({size}, type, 0.1)};
      expect_equal_to_definition(where, zero_centered, definition, inputs, {}, 4);  // as above
      expect_equal_to_definition(where + ", frozen", zero_centered, definition, inputs, {true, false}, 4);
    }
  });
}

TEST(RmsNorm, ZeroCenteredKeepsSmallWeightsInBfloat16) {
  const at::Tensor x = random_tensor({200, 128}, at::kBFloat16);
  const at::Tensor weight = at::full({128}, 0.001, at::kBFloat16);  // 1 + 0.001 is 1 in bfloat16
  const at::Tensor y = rms_norm(x, weight, kEps, NormWeight::zero_centered);
  const at::Tensor exact =
      reference::rms_norm(x.to(at::kDouble), weight.to(at::kDouble), kEps, NormWeight::zero_centered).to(at::kBFloat16);
  // One rounding at the end: equal except for ties that float32 breaks differently.
  EXPECT_LE((y != exact).to(at::kDouble).mean().item<double>(), 2e-3);
  EXPECT_FALSE(at::equal(y, rms_norm(x, at::ones({128}, at::kBFloat16), kEps)));
}

TEST(RmsNorm, LeavesFrozenInputsWithoutGradient) {
  const Tensors inputs = {random_tensor({9, 33}, at::kFloat), random_tensor({33}, at::kFloat)};
  expect_equal_to_definition("frozen input", kFast, kDefinition, inputs, {true, false});
  expect_equal_to_definition("frozen weight", kFast, kDefinition, inputs, {false, true});
  expect_equal_to_definition("all frozen", kFast, kDefinition, inputs, {true, true});
}

TEST(RmsNorm, TakesStridedInputs) {
  const Tensors inputs = {
      random_tensor({4, 33, 5}, at::kFloat).transpose(1, 2), random_tensor({66}, at::kFloat).slice(0, 0, 66, 2)};
  expect_equal_to_definition("strided", kFast, kDefinition, inputs);
}

TEST(RmsNorm, AcceptsZeroRows) {
  expect_equal_to_definition(
      "no rows", kFast, kDefinition, {random_tensor({0, 33}, at::kFloat), random_tensor({33}, at::kFloat)});
}

TEST(RmsNorm, WeightGradientDoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = random_tensor({1000, 96}, at::kFloat);
  const at::Tensor incoming = random_tensor({1000, 96}, at::kFloat);
  const auto gradient = [&] {
    at::Tensor weight = at::ones({96}, at::kFloat).set_requires_grad(true);
    rms_norm(x, weight, kEps).backward(incoming);
    return weight.grad();
  };
  const int threads = at::get_num_threads();
  const at::Tensor many = gradient();
  at::set_num_threads(1);
  const at::Tensor one = gradient();
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, many));
}

TEST(RmsNorm, RefusesInvalidShapesAndTypes) {
  const at::Tensor x = at::ones({2, 8});
  EXPECT_THAT(error_of([&] { rms_norm(x, at::ones({7}), kEps); }), testing::HasSubstr("found input 2x8 and weight 7"));
  EXPECT_THAT(
      error_of([&] { rms_norm(x, at::ones({8}, at::kDouble), kEps); }), testing::HasSubstr("found Float and Double"));
  at::Tensor leaf = at::ones({2, 8}).set_requires_grad(true);
  const at::Tensor sum = rms_norm(leaf, at::ones({8}), kEps).sum();
  EXPECT_THAT(
      error_of([&] { torch::autograd::grad({sum}, {leaf}, {}, true, true); }),
      testing::HasSubstr("differentiated again"));
}

}  // namespace
}  // namespace lehr::ops::test
