// Windows, sinks, logit softcapping and values with a size of their own, alone and combined, compared with the
// definition.
#include <gmock/gmock.h>

#include "test/ops/attention_definition.h"

namespace lehr::ops::test {
namespace {
using testing::HasSubstr;

// Two and a half tiles, so that windows begin and end inside a tile, at its border and behind it.
const Shape kWhole = {1, 150, 150, 4, 2, 24};
const Shape kCached = {2, 20, 150, 4, 2, 24};  // enough queries for the kernel
const Shape kDecoding = {2, 1, 150, 4, 2, 24};
const std::vector<Shape> kAllShapes = {kWhole, kCached, kDecoding};

std::string described(const std::string& where, const Shape& s) {
  return where + ", " + std::to_string(s.queries) + " queries";
}

at::Tensor documents() {
  return at::cat({at::full({1, 70}, 0, at::kLong), at::full({1, 1}, 1, at::kLong), at::full({1, 79}, 2, at::kLong)}, 1);
}

TEST(AttentionWindow, SeesItselfAndTheTokensJustBefore) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Shape& shape : kAllShapes) {
      for (const int64_t window : {2, 64, 66, 1000}) {
        expect_attention(
            described(where, shape) + ", window " + std::to_string(window), shape, type, {}, {.window = window});
      }
    }
  });
}

// Exact in every dtype: a neighbour has no influence at all.
TEST(AttentionWindow, OfOneTokenReturnsItsOwnValue) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const at::Tensor x = random_tensor({1, 131, 2, 9}, type);
    EXPECT_TRUE(at::equal(attention(x, x, x, {}, {.window = 1}), x)) << where;
  });
}

TEST(AttentionSinks, TakeAShareOfEveryHeadsWeights) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Shape& shape : kAllShapes) {
      const at::Tensor sinks = random_tensor({shape.query_heads}, at::kDouble, 2);
      expect_attention(described(where, shape), shape, type, {}, {.sinks = sinks});
    }
    // Far above or below all scores, where a naive exponential overflows.
    expect_attention(where + ", high", kWhole, type, {}, {.sinks = at::tensor({30., 0., -30., 200.}, at::kDouble)});
  });
  const at::Tensor x = random_tensor({1, 40, 2, 8}, at::kFloat);
  const at::Tensor none = at::full({2}, -1e4);
  EXPECT_LE(worst_error(attention(x, x, x, {}, {.sinks = none}), attention(x, x, x)), 1e-6) << "an absent sink";
}

TEST(AttentionSinks, StayInFloat32WithBfloat16Heads) {
  const at::Tensor x = random_tensor({1, 40, 2, 8}, at::kBFloat16);
  for (const int64_t queries : {40, 3}) {  // the kernel, and ATen
    const at::Tensor sinks = at::tensor({0.5f, -1.0f}).set_requires_grad(true);
    const at::Tensor y = attention(x.narrow(1, 40 - queries, queries), x, x, {}, {.sinks = sinks});
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(sinks.grad().scalar_type(), at::kFloat);
  }
}

TEST(AttentionSoftcap, AppliesTanhBeforeTheMask) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Shape& shape : kAllShapes) {
      for (const double softcap : {0.5, 30.0}) {
        expect_attention(
            described(where, shape) + ", softcap " + std::to_string(softcap), shape, type, {}, {.softcap = softcap});
      }
    }
  });
}

TEST(AttentionValues, MayHaveAnotherSizeThanKeys) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const auto& [size, value_size] : {std::pair{24, 16}, {16, 72}, {192, 128}, {40, 1}}) {
      expect_attention(where, {2, 70, 70, 4, 2, size, value_size}, type, {});
      expect_attention(where + ", cache", {2, 2, 70, 4, 2, size, value_size}, type, {}, {.softcap = 3});
    }
  });
}

// All options together, and without those that need the unfused matmuls.
std::vector<AttentionOptions> combinations(int64_t window) {
  return {
      {.scale = 0.3, .softcap = 4.0, .window = window, .sinks = at::randn({4}, at::kDouble)},
      {.scale = 0.3, .window = window},
      {.softcap = 4.0, .window = window}};
}

TEST(AttentionOptions, CombineWithEachOtherAndWithDocuments) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const AttentionOptions& options : combinations(66)) {
      for (Shape shape : kAllShapes) {
        shape.value_size = 40;
        expect_attention(described(where, shape), shape, type, {.document_ids = documents()}, options);
      }
    }
  });
}

TEST(AttentionOptions, CombineWithMasksThatOnlyATenSupports) {
  for (const at::ScalarType type : all_types()) {
    at::Tensor padding = at::ones({2, 40}, at::kBool);
    padding[0].narrow(0, 0, 10).fill_(false);
    padding[1].narrow(0, 25, 15).fill_(false);
    const at::Tensor pieces = (at::arange(40) / 9).to(at::kLong).unsqueeze(0) % 2;  // documents in several pieces
    const std::vector<AttentionMask> masks = {
        {.document_ids = pieces},
        {.key_padding = padding},
        {.document_ids = pieces, .key_padding = padding, .bias = random_tensor({4, 1, 40}, type)},
        {.allowed = at::rand({40, 40}) < 0.7, .bias = random_tensor({1}, type)}};
    for (size_t i = 0; i < masks.size(); ++i) {
      for (const AttentionOptions& options : combinations(17)) {
        for (const int64_t queries : {40, 2}) {
          AttentionMask mask = masks[i];
          mask.allowed = mask.allowed.defined() ? mask.allowed.narrow(0, 40 - queries, queries) : mask.allowed;
          const std::string what = std::to_string(queries) + " queries, mask " + std::to_string(i);
          expect_attention(what, {2, queries, 40, 4, 2, 8, 12}, type, mask, options);
        }
      }
    }
  }
}

TEST(AttentionOptions, FullyMaskedQueriesHaveZeroOutputAndGradient) {
  const at::Tensor x = random_tensor({1, 6, 2, 8}, at::kFloat).set_requires_grad(true);
  const AttentionMask fully_masked = {.key_padding = at::zeros({1, 6}, at::kBool)};
  for (const AttentionOptions& options :
       {AttentionOptions{.softcap = 5}, AttentionOptions{.window = 2}, AttentionOptions{.sinks = at::zeros({2})}}) {
    const at::Tensor y = attention(x, x, x, fully_masked, options);
    EXPECT_TRUE(at::equal(y, at::zeros_like(y)));
    (y * 100).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x)));
  }
}

TEST(AttentionOptions, LeaveFrozenInputsWithoutGradient) {
  const Tensors inputs = {
      random_tensor({1, 40, 4, 16}, at::kFloat),
      random_tensor({1, 40, 2, 16}, at::kFloat),
      random_tensor({1, 40, 2, 16}, at::kFloat),
      random_tensor({4}, at::kFloat)};
  for (const std::vector<bool>& frozen : {std::vector<bool>{true, true, true, false}, {false, false, false, true}}) {
    expect_equal_to_definition(
        "frozen",
        [](const Tensors& in) -> Tensors { return {attention(in[0], in[1], in[2], {}, {.sinks = in[3]})}; },
        [](const Tensors& in) -> Tensors { return {definition(in[0], in[1], in[2], {}, {.sinks = in[3]})}; },
        inputs,
        frozen);
  }
}

TEST(AttentionOptions, RefuseInvalidCombinations) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  const auto refused = [&](const AttentionMask& mask, const AttentionOptions& options) {
    return error_of([&] { attention(x, x, x, mask, options); });
  };
  EXPECT_THAT(refused({}, {.window = 0}), HasSubstr("attention: window: expected 1 or more tokens, found 0"));
  EXPECT_THAT(refused({}, {.softcap = 0}), HasSubstr("attention: softcap: expected a positive number, found 0"));
  EXPECT_THAT(refused({}, {.scale = NAN}), HasSubstr("attention: scale: expected a finite number"));
  EXPECT_THAT(refused({.causal = false}, {.window = 3}), HasSubstr("window: requires causal order"));
  EXPECT_THAT(refused({}, {.sinks = at::ones({3})}), HasSubstr("sinks: expected (Hq) = 2 floating numbers"));
}

}  // namespace
}  // namespace lehr::ops::test
