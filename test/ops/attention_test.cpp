// Attention and its masks, compared with the definition.
#include "lehr/ops/attention/attention.h"

#include <gmock/gmock.h>

#include "test/ops/attention_definition.h"

namespace lehr::ops::test {
namespace {

const std::vector<Shape> kShapes = {
    {1, 1, 1, 1, 1, 1},
    {2, 7, 7, 4, 2, 8},
    {1, 17, 17, 3, 1, 20},
    {2, 70, 70, 4, 4, 64},
    {1, 131, 131, 4, 2, 33},
};

TEST(Attention, CausalEqualsItsDefinition) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const Shape& shape : kShapes) {
      expect_attention(where + " T " + std::to_string(shape.queries), shape, type, {});
    }
  });
}

TEST(Attention, WithoutCausalOrderEveryKeyIsVisible) {
  for (const at::ScalarType type : all_types()) {
    expect_attention("all keys", {2, 33, 33, 4, 2, 16}, type, {.causal = false});
    expect_attention("more keys than queries", {2, 5, 33, 4, 2, 16}, type, {.causal = false});
  }
}

TEST(Attention, QueriesAreAtTheLastPositionsOfACache) {
  for (const at::ScalarType type : all_types()) {
    for (const int64_t queries : {1, 2, 9}) {
      expect_attention("cache", {2, queries, 40, 4, 2, 16}, type, {});
    }
  }
}

TEST(Attention, DocumentsDoNotSeeEachOther) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const at::Tensor ids = at::cat(
        {at::full({1, 5}, 0, at::kLong),
         at::full({1, 70}, 1, at::kLong),
         at::full({1, 1}, 2, at::kLong),
         at::full({1, 60}, 3, at::kLong)},
        1);
    expect_attention(where, {2, 136, 136, 2, 1, 16}, type, {.document_ids = ids});
    expect_attention(where + ", cache", {2, 30, 136, 2, 1, 16}, type, {.document_ids = ids});
    expect_attention(
        where + ", ids of each row", {2, 136, 136, 2, 1, 16}, type, {.document_ids = at::cat({ids, ids.flip(1)})});
  });
}

TEST(Attention, HiddenKeysAreNotSeenAndFullyMaskedQueriesReturnZero) {
  for (const at::ScalarType type : all_types()) {
    at::Tensor padding = at::ones({2, 33}, at::kBool);
    padding[0].narrow(0, 0, 4).fill_(false);  // left padding: the first four queries of row 0 are fully masked
    padding[1].narrow(0, 20, 13).fill_(false);
    expect_attention("padding", {2, 33, 33, 4, 2, 16}, type, {.key_padding = padding});
    expect_attention("allowed", {2, 33, 33, 4, 2, 16}, type, {.allowed = at::rand({33, 33}) < 0.7});
    expect_attention(
        "bias", {2, 33, 33, 4, 2, 16}, type, {.key_padding = padding, .bias = random_tensor({4, 33, 33}, type)});
  }
  const at::Tensor x = random_tensor({1, 6, 2, 8}, at::kFloat);
  const at::Tensor y = attention(x, x, x, {.key_padding = at::zeros({1, 6}, at::kBool)});
  EXPECT_TRUE(at::equal(y, at::zeros_like(y)));
}

TEST(Attention, UsesTheGivenScale) {
  expect_attention("scale", {1, 19, 19, 2, 2, 8}, at::kDouble, {}, {.scale = 0.77});
}

TEST(Attention, TakesStridedInputs) {
  const at::Tensor packed = random_tensor({2, 40, 3, 4, 24}, at::kFloat);  // (B, T, 3, H, D), as of a fused projection
  expect_equal_to_definition(
      "strided",
      [](const Tensors& in) -> Tensors { return {attention(in[0], in[1], in[2])}; },
      [](const Tensors& in) -> Tensors { return {definition(in[0], in[1], in[2], {})}; },
      {packed.select(2, 0), packed.select(2, 1), packed.select(2, 2)});
}

TEST(Attention, AcceptsZeroTokens) {
  const at::Tensor none = at::zeros({1, 0, 2, 8});
  EXPECT_EQ(attention(none, none, none).numel(), 0);
}

TEST(Attention, LeavesFrozenInputsWithoutGradient) {
  const Tensors inputs = {
      random_tensor({1, 40, 4, 16}, at::kFloat),
      random_tensor({1, 40, 2, 16}, at::kFloat),
      random_tensor({1, 40, 2, 16}, at::kFloat)};
  for (const std::vector<bool>& frozen :
       {std::vector<bool>{true, false, false}, {false, true, true}, {true, true, true}}) {
    expect_equal_to_definition(
        "frozen",
        [](const Tensors& in) -> Tensors { return {attention(in[0], in[1], in[2])}; },
        [](const Tensors& in) -> Tensors { return {definition(in[0], in[1], in[2], {})}; },
        inputs,
        frozen);
  }
}

TEST(Attention, RefusesInvalidShapesAndTypes) {
  const at::Tensor q = at::ones({1, 4, 3, 8});
  const at::Tensor k = at::ones({1, 4, 2, 8});
  EXPECT_THAT(error_of([&] { attention(q, k, k); }), testing::HasSubstr("Hkv dividing Hq, found 1x4x3x8, 1x4x2x8"));
  const at::Tensor shorter = at::ones({1, 3, 3, 8});
  EXPECT_THAT(error_of([&] { attention(q, shorter, shorter); }), testing::HasSubstr("found 4 and 3"));
  EXPECT_THAT(
      error_of([&] {
        attention(q, q, q, {.document_ids = at::ones({1, 5}, at::kLong)});
      }),
      testing::HasSubstr("expected document_ids (B or 1, S) = 1x4, found 1x5"));
}

}  // namespace
}  // namespace lehr::ops::test
