#include "lehr/ops/grouped_linear/grouped_linear.h"

#include <gtest/gtest.h>

#include "lehr/base/error.h"
#include "lehr/ops/token_permutation/token_permutation.h"
#include "test/ops/against_reference.h"

namespace lehr::ops {
namespace {

// The second and the last group have no rows.
at::Tensor some_ends() {
  return at::tensor({3, 3, 8, 9, 9}, at::kInt);
}

TEST(GroupedLinear, EqualsItsDefinitionWithGradients) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    at::manual_seed(1);
    const at::Tensor input = at::randn({9, 6}, type).set_requires_grad(true);
    const at::Tensor weight = at::randn({5, 4, 6}, type).set_requires_grad(true);
    const at::Tensor input_ref = input.detach().clone().set_requires_grad(true);
    const at::Tensor weight_ref = weight.detach().clone().set_requires_grad(true);
    const at::Tensor grad = at::randn({9, 4}, type);
    const at::Tensor output = grouped_linear(input, weight, some_ends());
    const at::Tensor expected = grouped_linear_reference(input_ref, weight_ref, some_ends());
    output.backward(grad);
    expected.backward(grad);
    // Sums of 6 to 9 products: a few roundings.
    const double tolerance = type == at::kDouble ? 1e-13 : 1e-5;
    EXPECT_TRUE(at::allclose(output, expected, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(input.grad(), input_ref.grad(), tolerance, tolerance));
    EXPECT_TRUE(at::allclose(weight.grad(), weight_ref.grad(), tolerance, tolerance));
    EXPECT_TRUE(at::equal(weight.grad()[1], at::zeros({4, 6}, type))) << "a group without rows learns nothing";
  }
}

TEST(GroupedLinear, EqualsItsDefinitionInEveryTypeOnEveryInstructionSet) {
  test::everywhere([](at::ScalarType type, const std::string& where) {
    const at::Tensor ends = at::tensor({13, 13, 60, 61, 77}, at::kInt);
    const at::Tensor input = test::random_tensor({77, 45}, type), weight = test::random_tensor({5, 70, 45}, type);
    const auto fast = [&](const test::Tensors& in) { return test::Tensors{grouped_linear(in[0], in[1], ends)}; };
    const auto definition = [&](const test::Tensors& in) {
      return test::Tensors{grouped_linear_reference(in[0], in[1], ends)};
    };
    test::expect_equal_to_definition(where, fast, definition, {input, weight});
    const at::Tensor bias = test::random_tensor({5, 70}, type);
    const auto fast_sum = [&](const test::Tensors& in) {
      return test::Tensors{grouped_linear(in[0], in[1], ends, in[2])};
    };
    const auto sum = [&](const test::Tensors& in) {
      return test::Tensors{grouped_linear_reference(in[0], in[1], ends, in[2])};
    };
    test::expect_equal_to_definition(where + " with biases", fast_sum, sum, {input, weight, bias});
    test::expect_equal_to_definition(
        where + ", only biases", fast_sum, sum, {input, weight, bias}, {true, true, false});
    test::expect_equal_to_definition(
        where + ", frozen biases", fast_sum, sum, {input, weight, bias}, {true, false, true});
  });
}

TEST(GroupedLinear, AcceptsZeroRows) {
  const at::Tensor weight = at::randn({2, 4, 6}).set_requires_grad(true);
  const at::Tensor output = grouped_linear(at::empty({0, 6}), weight, at::zeros({2}, at::kInt));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{0, 4}));
  output.sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros_like(weight)));
  const at::Tensor bias = at::randn({2, 4}).set_requires_grad(true);
  grouped_linear(at::empty({0, 6}), weight, at::zeros({2}, at::kInt), bias).sum().backward();
  EXPECT_TRUE(at::equal(bias.grad(), at::zeros_like(bias)));
}

// A group without rows learns nothing, the others the sum of their rows' gradients.
TEST(GroupedLinear, SumsTheGradientOfABiasByGroup) {
  const at::Tensor bias = at::zeros({5, 4}).set_requires_grad(true);
  grouped_linear(at::randn({9, 6}), at::randn({5, 4, 6}), some_ends(), bias).sum().backward();
  EXPECT_TRUE(at::equal(bias.grad().select(1, 2), at::tensor({3.0F, 0.0F, 5.0F, 1.0F, 0.0F})));
}

TEST(GroupedLinear, RefusesInvalidShapes) {
  const at::Tensor weight = at::randn({5, 4, 6});
  EXPECT_THROW(grouped_linear(at::randn({9, 7}), weight, some_ends()), Error);
  EXPECT_THROW(grouped_linear(at::randn({9, 6}), weight, some_ends().to(at::kLong)), Error);
  EXPECT_THROW(grouped_linear(at::randn({9, 6}), weight, some_ends().narrow(0, 0, 2)), Error);
  for (const at::Tensor& bias : {at::randn({4}), at::randn({5, 6}), at::randn({5, 4}, at::kDouble)}) {
    EXPECT_THROW(grouped_linear(at::randn({9, 6}), weight, some_ends(), bias), Error);
  }
}

TEST(TokenPermutation, SortsCopiesByExpertAndKeepsTheOrderOfTokens) {
  const at::Tensor selected = at::tensor({2, 0, 1, 2, 2, 0}, at::kLong).view({3, 2});
  const auto p = sort_by_expert(selected, 4);
  EXPECT_TRUE(at::equal(p.order, at::tensor({1, 5, 2, 0, 3, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(p.counts, at::tensor({2, 1, 3, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(p.ends, at::tensor({2, 3, 6, 6}, at::kInt)));
  const at::Tensor tokens = at::arange(3, at::kDouble).view({3, 1});
  EXPECT_TRUE(at::equal(permute_tokens(tokens, p).flatten(), at::tensor({0., 2., 1., 0., 1., 2.}, at::kDouble)));
}

TEST(TokenPermutation, RoundTripIsTheWeightedSumWithItsGradients) {
  at::manual_seed(2);
  const at::Tensor selected = at::tensor({2, 0, 1, 2, 2, 0}, at::kLong).view({3, 2});
  const auto p = sort_by_expert(selected, 4);
  const at::Tensor tokens = at::randn({3, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor weights = at::rand({3, 2}, at::kDouble).set_requires_grad(true);
  const at::Tensor scale = at::tensor({1., 2., 3., 4.}, at::kDouble);  // stands for the experts
  const at::Tensor grad = at::randn({3, 5}, at::kDouble);
  const at::Tensor sorted_scale = scale.index({selected.flatten().index_select(0, p.order)}).unsqueeze(1);
  combine_tokens(permute_tokens(tokens, p) * sorted_scale, weights, p).backward(grad);

  const at::Tensor tokens_ref = tokens.detach().clone().set_requires_grad(true);
  const at::Tensor weights_ref = weights.detach().clone().set_requires_grad(true);
  const at::Tensor expected = tokens_ref * (weights_ref * scale.index({selected})).sum(1, true);
  expected.backward(grad);
  EXPECT_TRUE(at::allclose(tokens.grad(), tokens_ref.grad(), 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(weights.grad(), weights_ref.grad(), 1e-13, 1e-13));
}

}  // namespace
}  // namespace lehr::ops
