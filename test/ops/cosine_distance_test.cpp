// cosine_distance, compared with ATen's cosine similarity.
#include "lehr/ops/cosine_distance/cosine_distance.h"

#include <gmock/gmock.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(CosineDistance, EqualsItsDefinition) {
  for (const at::ScalarType type : all_types()) {
    const Tensors in{random_tensor({13, 37}, type), random_tensor({13, 37}, type)};
    expect_equal_to_definition(
        c10::toString(type),
        [](const Tensors& x) -> Tensors { return {cosine_distance(x[0], x[1])}; },
        [](const Tensors& x) -> Tensors { return {reference::cosine_distance(x[0], x[1])}; },
        in,
        {false, true});
  }
}

TEST(CosineDistance, IsZeroForRowsOfTheSameDirection) {
  const at::Tensor x = random_tensor({5, 32}, at::kDouble).set_requires_grad(true);
  const at::Tensor distance = cosine_distance(x, x.detach() * 3);
  EXPECT_LE(distance.abs().max().item<double>(), 1e-15);  // rounding of float64
  distance.sum().backward();
  EXPECT_LE(x.grad().abs().max().item<double>(), 1e-15);
}

TEST(CosineDistance, HasNoGradientAtAZeroRow) {
  const at::Tensor x = at::zeros({2, 4}).set_requires_grad(true);
  const at::Tensor distance = cosine_distance(x, at::ones({2, 4}));
  EXPECT_TRUE(at::equal(distance, at::ones({2})));
  distance.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::zeros({2, 4})));
}

TEST(CosineDistance, RefusesOtherShapes) {
  EXPECT_THAT(
      error_of([] {
        cosine_distance(at::ones({2, 4}), at::ones({2, 5}));
      }),
      testing::HasSubstr("expected x and target (N, H), found 2x4 and 2x5"));
}

}  // namespace
}  // namespace lehr::ops::test
