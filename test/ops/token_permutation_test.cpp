// The permutation of tokens to their experts and back, compared with the definition in plain ATen.
#include "lehr/ops/token_permutation/token_permutation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lehr/meter/operation_meter.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

// Inputs: tokens (N, H), weights (N, k), and a factor (N*k, 1) for each expert's row.
TEST(TokenPermutation, EqualsItsDefinitionForAllSizesAndTypes) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const int64_t choices : {1, 2, 5}) {
      for (const int64_t size : {1, 7, 64, 131}) {
        constexpr int64_t kTokens = 300;
        const TokenPermutation p = sort_by_expert(at::randint(0, 9, {kTokens, choices}, at::kLong), 9);
        const Operator fast = [&](const Tensors& in) -> Tensors {
          const at::Tensor sorted = permute_tokens(in[0], p);
          return {sorted, combine_tokens(sorted * in[2], in[1], p)};
        };
        const Operator definition = [&](const Tensors& in) -> Tensors {
          const at::Tensor sorted = in[0].index_select(0, p.order.div(choices, "floor"));
          const at::Tensor copies = (sorted * in[2]).index_select(0, p.inverse).view({kTokens, choices, size});
          return {sorted, (copies * in[1].unsqueeze(-1)).sum(1)};
        };
        const Tensors inputs = {
            random_tensor({kTokens, size}, type),
            random_tensor({kTokens, choices}, type),
            random_tensor({kTokens * choices, 1}, type)};
        expect_equal_to_definition(
            fmt::format("{}, {} of {}", where, choices, size), fast, definition, inputs, {}, /*tolerances=*/2);
      }
    }
  });
}

TEST(TokenPermutation, AcceptsZeroTokensAndFrozenInputs) {
  const TokenPermutation none = sort_by_expert(at::empty({0, 2}, at::kLong), 3);
  EXPECT_EQ(permute_tokens(at::empty({0, 4}), none).sizes(), at::IntArrayRef({0, 4}));
  const TokenPermutation p = sort_by_expert(at::tensor({1, 0, 0, 2}, at::kLong).view({2, 2}), 3);
  const Operator both = [&](const Tensors& in) -> Tensors {
    return {combine_tokens(permute_tokens(in[0], p), in[1], p)};
  };
  const Operator sum = [](const Tensors& in) -> Tensors { return {in[0] * in[1].sum(1, true)}; };
  const Tensors inputs = {random_tensor({2, 9}, at::kFloat), random_tensor({2, 2}, at::kFloat)};
  expect_equal_to_definition("frozen weights", both, sum, inputs, {true, false});
  expect_equal_to_definition("frozen tokens", both, sum, inputs, {false, true});
}

// A token with several experts is read once, as by the kernels of a GPU, and written once for each.
TEST(TokenPermutation, CountsEachTokenOnceAndEachCopyOnce) {
  constexpr int64_t kTokens = 6, kChoices = 5, kSize = 8, kBytes = 4;
  const TokenPermutation p = sort_by_expert(at::randint(0, 3, {kTokens, kChoices}, at::kLong), 3);
  const at::Tensor tokens = random_tensor({kTokens, kSize}, at::kFloat);
  const OperationMeter meter;
  permute_tokens(tokens, p);
  EXPECT_EQ(meter.counts().pointwise_bytes, kBytes * kSize * kTokens * (1 + kChoices));
}

TEST(TokenPermutation, RefusesInvalidShapesAndTypes) {
  const TokenPermutation p = sort_by_expert(at::randint(0, 3, {5, 2}, at::kLong), 3);
  EXPECT_NE(error_of([&] { permute_tokens(at::ones({4, 8}), p); }).find("4x8 and 10 copies"), std::string::npos);
  EXPECT_NE(
      error_of([&] {
        combine_tokens(at::ones({9, 8}), at::ones({5, 2}), p);
      }).find("9x8, 5x2 and 10 copies"),
      std::string::npos);
}

}  // namespace
}  // namespace lehr::ops::test
