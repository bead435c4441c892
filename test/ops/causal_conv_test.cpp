// The causal convolution, compared with its definition and with documents by themselves.
#include "lehr/ops/causal_conv/causal_conv.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

at::Tensor lengths_of(const std::vector<int>& lengths) {
  return at::tensor(lengths, at::kInt);
}

TEST(CausalConv, EqualsASumOfProducts) {
  const at::Tensor x = at::tensor({1.0, 2.0, 4.0, 8.0}, at::kDouble).view({1, 4, 1});
  const at::Tensor weight = at::tensor({1000.0, 100.0, 10.0, 1.0}, at::kDouble).view({1, 1, 4});
  const at::Tensor sums = at::tensor({1.0, 12.0, 124.0, 1248.0}, at::kDouble).view({1, 4, 1});
  EXPECT_LE(worst_error(causal_conv(x, weight), at::silu(sums)), 1e-15);
  EXPECT_LE(worst_error(reference::causal_conv(x, weight), at::silu(sums)), 1e-15);
}

TEST(CausalConv, EqualsItsDefinitionForAllSizesAndTypes) {
  struct Shape {
    std::vector<int64_t> x;
    int64_t width;
    std::vector<int> lengths;
  };
  const Shape shapes[] = {
      {{1, 1, 1}, 4, {}},
      {{2, 3, 5}, 4, {}},
      {{2, 9, 2, 7}, 4, {0, 4, 5, 9, 11, 11, 18}},
      {{1, 40, 200}, 1, {}},
      {{1, 20, 3, 50}, 16, {0, 17, 20}},
      {{3, 6, 17}, 2, {0, 1, 6, 12, 13, 14, 15, 16, 17, 18}}};
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const Shape& shape : shapes) {
      const at::Tensor lengths = shape.lengths.empty() ? at::Tensor() : lengths_of(shape.lengths);
      const at::Tensor x = random_tensor(shape.x, type);
      const int64_t channels = x.numel() / (x.size(0) * x.size(1));
      expect_equal_to_definition(
          where + " width " + std::to_string(shape.width),
          [&](const Tensors& in) -> Tensors { return {causal_conv(in[0], in[1], lengths)}; },
          [&](const Tensors& in) -> Tensors { return {reference::causal_conv(in[0], in[1], lengths)}; },
          {x, random_tensor({channels, 1, shape.width}, type)});
    }
  });
}

// The documents are longer than a kernel, as long and shorter, and the first of a row follows one of another row.
TEST(CausalConv, SeesNoOtherDocument) {
  const std::vector<int> borders{0, 5, 9, 10, 12, 13, 20, 24};
  const at::Tensor x = random_tensor({2, 12, 6}, at::kDouble).requires_grad_();
  const at::Tensor weight = random_tensor({6, 1, 4}, at::kDouble);
  const at::Tensor together = causal_conv(x, weight, lengths_of(borders)).view({24, 6});
  const at::Tensor rows = x.view({24, 6});
  std::vector<at::Tensor> alone;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    alone.push_back(causal_conv(rows.slice(0, borders[i], borders[i + 1]).unsqueeze(0), weight)[0]);
  }
  const at::Tensor incoming = at::randn({24, 6}, at::kDouble);
  EXPECT_LE(worst_error(together, at::cat(alone)), 1e-15);
  const auto gradient = torch::autograd::grad({together}, {x}, {incoming})[0];
  EXPECT_LE(worst_error(gradient, torch::autograd::grad({at::cat(alone)}, {x}, {incoming})[0]), 1e-15);
  EXPECT_GT(worst_error(causal_conv(x, weight).view({24, 6}), at::cat(alone)), 0.1);
}

// The first sequence of a row continues the tokens before the row, the others do not; some rows are shorter than those.
TEST(CausalConv, ContinuesTheTokensBeforeARow) {
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const int64_t tokens : {1, 2, 9, 40}) {
      for (const bool documents : {false, true}) {
        const int last = static_cast<int>(tokens);
        const at::Tensor lengths =
            documents ? lengths_of({0, (last + 1) / 2, last, last, last + last / 2, 2 * last}) : at::Tensor();
        expect_equal_to_definition(
            where + " tokens " + std::to_string(tokens),
            [&](const Tensors& in) -> Tensors { return {causal_conv(in[0], in[1], lengths, in[2])}; },
            [&](const Tensors& in) -> Tensors { return {reference::causal_conv(in[0], in[1], lengths, in[2])}; },
            {random_tensor({2, tokens, 2, 9}, type),
             random_tensor({18, 1, 4}, type),
             random_tensor({2, 3, 2, 9}, type)});
      }
    }
  });
}

TEST(CausalConv, AddsABias) {
  everywhere([&](at::ScalarType type, const std::string& where) {
    for (const int64_t channels : {1, 18, 300}) {
      const at::Tensor lengths = lengths_of({0, 5, 9, 18});
      const auto with = [&](auto conv) -> Operator {
        return [=](const Tensors& in) -> Tensors { return {conv(in[0], in[1], lengths, in[2], in[3])}; };
      };
      const Tensors inputs{
          random_tensor({2, 9, channels}, type),
          random_tensor({channels, 1, 4}, type),
          random_tensor({2, 3, channels}, type),
          random_tensor({channels}, type)};
      expect_equal_to_definition(where, with(causal_conv), with(reference::causal_conv), inputs);
      expect_equal_to_definition(
          where + " alone", with(causal_conv), with(reference::causal_conv), inputs, {true, true, true, false});
      expect_equal_to_definition(
          where + " frozen", with(causal_conv), with(reference::causal_conv), inputs, {false, false, false, true});
    }
  });
  const at::Tensor x = at::tensor({1.0, 2.0}, at::kDouble).view({1, 2, 1});
  const at::Tensor weight = at::tensor({10.0, 1.0}, at::kDouble).view({1, 1, 2});
  const at::Tensor sums = at::tensor({0.5, 11.5}, at::kDouble).view({1, 2, 1});
  EXPECT_LE(worst_error(causal_conv(x, weight, {}, {}, at::full({1}, -0.5, at::kDouble)), at::silu(sums)), 1e-15);
}

TEST(CausalConv, OfTwoPartsEqualsTheWhole) {
  const at::Tensor weight = random_tensor({6, 1, 4}, at::kDouble);
  const at::Tensor whole = random_tensor({2, 12, 6}, at::kDouble).requires_grad_();
  const at::Tensor incoming = at::randn({2, 12, 6}, at::kDouble);
  const at::Tensor expected = causal_conv(whole, weight);
  const auto wanted = torch::autograd::grad({expected}, {whole}, {incoming})[0];
  for (const int64_t cut : {3, 5, 11}) {
    const at::Tensor last = causal_conv(whole.slice(1, cut), weight, {}, whole.slice(1, cut - 3, cut));
    const at::Tensor joined = at::cat({causal_conv(whole.slice(1, 0, cut), weight), last}, 1);
    EXPECT_LE(worst_error(joined, expected), 1e-15);
    EXPECT_LE(worst_error(torch::autograd::grad({joined}, {whole}, {incoming})[0], wanted), 1e-15);
  }
}

TEST(CausalConv, LeavesFrozenInputsWithoutGradient) {
  const Operator fast = [](const Tensors& in) -> Tensors { return {causal_conv(in[0], in[1])}; };
  const Operator definition = [](const Tensors& in) -> Tensors { return {reference::causal_conv(in[0], in[1])}; };
  const Tensors inputs{random_tensor({2, 9, 300}, at::kFloat), random_tensor({300, 1, 4}, at::kFloat)};
  expect_equal_to_definition("frozen x", fast, definition, inputs, {true, false});
  expect_equal_to_definition("frozen weight", fast, definition, inputs, {false, true});
}

TEST(CausalConv, RefusesOtherShapes) {
  const auto found = [](at::IntArrayRef x, at::IntArrayRef weight) {
    return error_of([&] { causal_conv(at::ones(x), at::ones(weight)); });
  };
  EXPECT_THAT(found({2, 3, 4}, {5, 1, 4}), testing::HasSubstr("found Float 2x3x4 and Float 5x1x4"));
  EXPECT_THAT(found({2, 3, 4}, {4, 4}), testing::HasSubstr("found Float 2x3x4 and Float 4x4"));
  EXPECT_THAT(found({2, 3, 4}, {4, 1, 17}), testing::HasSubstr("expected a width of 1 to 16, found 17"));
  EXPECT_THAT(
      error_of([&] {
        causal_conv(at::ones({2, 3, 4}), at::ones({4, 1, 4}), {}, at::ones({2, 2, 4}));
      }),
      testing::HasSubstr("before: expected Float 2x3x4, found 2x2x4"));
  EXPECT_THAT(
      error_of([&] {
        causal_conv(at::ones({2, 3, 4}), at::ones({4, 1, 4}), {}, {}, at::ones({3}));
      }),
      testing::HasSubstr("bias: expected Float 4, found 3"));
}

}  // namespace
}  // namespace lehr::ops::test
