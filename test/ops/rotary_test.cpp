// Rotary embedding, alone and after QK-norm, compared with the definitions.
#include "lehr/ops/rotary/rotary.h"

#include <gmock/gmock.h>

#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/kernels.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

// Large, so that the gradient of very short rows is not only cancellation.
constexpr double kEps = 0.3;

struct Case {
  int64_t batch, tokens, query_heads, key_heads, size, rotated, angle_batch;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 2, 2, 1},
    {2, 5, 4, 2, 14, 14, 1},
    {2, 7, 3, 1, 34, 34, 2},
    {1, 17, 2, 2, 128, 128, 0},
    {3, 3, 2, 1, 80, 32, 3},  // partial rotation
    {2, 0, 2, 1, 16, 16, 1},  // no tokens
    {1, 129, 8, 4, 64, 64, 1},
};

std::pair<at::Tensor, at::Tensor> angles(const Case& c, at::ScalarType type) {
  at::Tensor half = at::randn({std::max<int64_t>(c.angle_batch, 1), c.tokens, c.rotated / 2}, at::kDouble) * 3;
  if (c.angle_batch == 0) {
    half = half.squeeze(0);
  }
  const at::Tensor whole = at::cat({half, half}, -1);
  return {whole.cos().to(type), whole.sin().to(type)};
}

TEST(Rotary, RotatesEachPairByItsAngle) {
  const at::Tensor q = at::tensor({1.0, 2.0, 3.0, 4.0}).view({1, 1, 1, 4});
  const at::Tensor cos = at::tensor({0.0, 1.0, 0.0, 1.0}).view({1, 4});  // a quarter turn, and none
  const at::Tensor sin = at::tensor({1.0, 0.0, 1.0, 0.0}).view({1, 4});
  const at::Tensor half = std::get<0>(apply_rotary(q, q, cos, sin));
  EXPECT_TRUE(at::equal(half.flatten(), at::tensor({-3.0, 2.0, 1.0, 4.0})));
  const at::Tensor interleaved = std::get<0>(apply_rotary(q, q, cos, sin, RotaryStyle::interleaved));
  EXPECT_TRUE(at::equal(interleaved.flatten(), at::tensor({-2.0, 1.0, 3.0, 4.0})));
}

TEST(Rotary, EqualsItsDefinitionForAllShapesTypesAndStyles) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Case& c : kCases) {
      for (const RotaryStyle style : {RotaryStyle::half, RotaryStyle::interleaved}) {
        const auto [cos, sin] = angles(c, at::kDouble);
        const Operator fast = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
          const auto [q, k] = apply_rotary(in[0], in[1], c_, s, style);
          return {q, k};
        };
        const Operator definition = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
          const auto [q, k] = reference::apply_rotary(in[0], in[1], c_, s, style);
          return {q, k};
        };
        const Tensors inputs = {
            random_tensor({c.batch, c.tokens, c.query_heads, c.size}, type),
            random_tensor({c.batch, c.tokens, c.key_heads, c.size}, type)};
        expect_equal_to_definition(where + ", head size " + std::to_string(c.size), fast, definition, inputs);
        expect_equal_to_definition(where + ", frozen q", fast, definition, inputs, {true, false});
      }
    }
  });
}

TEST(Rotary, RotatesQueriesAlone) {
  const at::Tensor q = random_tensor({2, 5, 3, 8}, at::kDouble), weight = random_tensor({8}, at::kDouble);
  const auto [cos, sin] = angles({2, 5, 3, 3, 8, 8, 1}, at::kDouble);
  const auto alone = apply_rotary(q, {}, cos, sin);
  EXPECT_TRUE(at::equal(std::get<0>(alone), std::get<0>(apply_rotary(q, q, cos, sin))));
  EXPECT_FALSE(std::get<1>(alone).defined());
  const auto normed = qk_norm_rotary(q, {}, weight, {}, kEps, cos, sin);
  EXPECT_TRUE(at::equal(std::get<0>(normed), std::get<0>(qk_norm_rotary(q, q, weight, weight, kEps, cos, sin))));
  EXPECT_FALSE(std::get<1>(normed).defined());
}

TEST(Rotary, KeepsFloat32AnglesWithBfloat16) {
  const Case c{1, 9, 2, 1, 64, 64, 1};
  const auto [cos, sin] = angles(c, at::kFloat);
  const at::Tensor q = random_tensor({1, 9, 2, 64}, at::kBFloat16);
  const at::Tensor exact =
      std::get<0>(reference::apply_rotary(q.to(at::kDouble), q.to(at::kDouble), cos, sin, RotaryStyle::half))
          .to(at::kBFloat16);
  const at::Tensor fast = std::get<0>(apply_rotary(q, q, cos, sin));
  // One rounding: equal except for ties that float32 breaks differently.
  EXPECT_LE((fast != exact).to(at::kDouble).mean().item<double>(), 2e-3);
}

TEST(QkNormRotary, EqualsTheTwoDefinitionsInSequence) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Case& c : kCases) {
      for (const RotaryStyle style : {RotaryStyle::half, RotaryStyle::interleaved}) {
        const auto [cos, sin] = angles(c, at::kDouble);
        const Operator fast = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
          const auto [q, k] = qk_norm_rotary(in[0], in[1], in[2], in[3], kEps, c_, s, style);
          return {q, k};
        };
        const Operator definition = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
          const auto [q, k] = reference::apply_rotary(
              reference::rms_norm(in[0], in[2], kEps), reference::rms_norm(in[1], in[3], kEps), c_, s, style);
          return {q, k};
        };
        const Tensors inputs = {
            random_tensor({c.batch, c.tokens, c.query_heads, c.size}, type),
            random_tensor({c.batch, c.tokens, c.key_heads, c.size}, type),
            random_tensor({c.size}, type),
            random_tensor({c.size}, type)};
        expect_equal_to_definition(where + ", head size " + std::to_string(c.size), fast, definition, inputs);
        expect_equal_to_definition(where + ", frozen", fast, definition, inputs, {true, false, false, true});
      }
    }
  });
}

TEST(QkNormRotary, AcceptsZeroCenteredWeights) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const Case c{3, 3, 2, 1, 80, 32, 3};
    const auto [cos, sin] = angles(c, at::kDouble);
    const auto fast = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
      const auto [q, k] =
          qk_norm_rotary(in[0], in[1], in[2], in[3], kEps, c_, s, RotaryStyle::interleaved, NormWeight::zero_centered);
      return {q, k};
    };
    const auto definition = [&, c_ = cos, s = sin](const Tensors& in) -> Tensors {
      const auto norm = [](const at::Tensor& x, const at::Tensor& w) {
        return x / (x.square().mean(-1, true) + kEps).sqrt() * (w + 1);
      };
      const auto [q, k] =
          reference::apply_rotary(norm(in[0], in[2]), norm(in[1], in[3]), c_, s, RotaryStyle::interleaved);
      return {q, k};
    };
    const Tensors inputs = {
        random_tensor({c.batch, c.tokens, c.query_heads, c.size}, type),
        random_tensor({c.batch, c.tokens, c.key_heads, c.size}, type),
        random_tensor({c.size}, type, 0.1),
        random_tensor({c.size}, type, 0.1)};
    expect_equal_to_definition(where, fast, definition, inputs);
  });
}

TEST(QkNormRotary, AcceptsHeadsTooLargeForTheFusedKernel) {
  const int64_t size = kMaxFusedHeadSize + 6;
  const Case c{1, 3, 1, 1, size, size, 1};
  const auto [cos, sin] = angles(c, at::kDouble);
  const at::Tensor q = random_tensor({1, 3, 1, size}, at::kDouble);
  const at::Tensor w = random_tensor({size}, at::kDouble);
  const at::Tensor expected =
      std::get<0>(reference::apply_rotary(reference::rms_norm(q, w, kEps), q, cos, sin, RotaryStyle::half));
  EXPECT_LE(worst_error(std::get<0>(qk_norm_rotary(q, q, w, w, kEps, cos, sin)), expected), 1e-12);
}

TEST(Rotary, RefusesInvalidShapesAndTypes) {
  const at::Tensor q = at::ones({1, 3, 2, 8});
  const at::Tensor angle = at::ones({4, 8});
  EXPECT_THAT(
      error_of([&] { apply_rotary(q, q, angle, angle); }), testing::HasSubstr("for q 1x3x2x8, found 4x8 and 4x8"));
  const at::Tensor k = at::ones({1, 2, 2, 8});
  EXPECT_THAT(error_of([&] { apply_rotary(q, k, angle, angle); }), testing::HasSubstr("found 1x3x2x8 and 1x2x2x8"));
}

}  // namespace
}  // namespace lehr::ops::test
