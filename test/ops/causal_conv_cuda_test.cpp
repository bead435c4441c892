// The CUDA kernels of the causal convolution, compared with its definition: as loops on the host everywhere, and on a
// GPU if there is one.
#include "lehr/ops/causal_conv/causal_conv.h"
#include "lehr/ops/causal_conv/kernels.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

class CausalConvCuda : public OperatorKernelsTest {
 protected:
  // Inputs: x, the weight, and the tokens before the rows, if there are three.
  static Operator fast(const at::Tensor& lengths) {
    return [=](const Tensors& in) -> Tensors {
      const at::Tensor own = lengths.defined() ? lengths.to(in[0].device()) : lengths;
      return {causal_conv(in[0], in[1], own, in.size() > 2 ? in[2] : at::Tensor())};
    };
  }
  static Operator definition(const at::Tensor& lengths) {
    return [=](const Tensors& in) -> Tensors {
      return {reference::causal_conv(in[0], in[1], lengths, in.size() > 2 ? in[2] : at::Tensor())};
    };
  }
};

at::Tensor lengths_of(const std::vector<int>& lengths) {
  return lengths.empty() ? at::Tensor() : at::tensor(lengths, at::kInt);
}

// Less than a thread's channels, a block of them and a part of the next; less than a run of tokens, several runs,
// several blocks; kernels of all widths.
TEST_P(CausalConvCuda, EqualsItsDefinition) {
  struct Shape {
    std::vector<int64_t> x;
    int64_t width;
    std::vector<int> lengths;
  };
  const Shape shapes[] = {
      {{1, 1, 1}, 4, {}},
      {{2, 3, 5}, 4, {}},
      {{2, 9, 2, 8}, 4, {0, 4, 5, 9, 11, 11, 18}},
      {{1, 300, 260}, 4, {}},
      {{1, 33, 16}, 1, {}},
      {{2, 70, 3, 8}, 2, {0, 0, 1, 64, 70, 70, 70, 138, 139, 140}},
      {{1, 131, 70}, 16, {0, 17, 129, 131}},
      {{1, 40, 8}, 5, {}}};
  for (const auto type : kKernelTypes) {
    for (const Shape& shape : shapes) {
      const at::Tensor x = random_tensor(shape.x, type), lengths = lengths_of(shape.lengths);
      const int64_t channels = x.numel() / (x.size(0) * x.size(1));
      expect_equal(
          std::to_string(x.size(1)) + " tokens, width " + std::to_string(shape.width),
          fast(lengths),
          definition(lengths),
          {x, random_tensor({channels, 1, shape.width}, type)});
    }
  }
}

// The first sequence of a row continues the tokens before the row, the others do not; some rows are shorter than those.
TEST_P(CausalConvCuda, ContinuesTheTokensBeforeARow) {
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {2, 4, 6}) {
      for (const int64_t tokens : {1, 2, 9, 140}) {
        for (const bool documents : {false, true}) {
          const int last = static_cast<int>(tokens);
          const at::Tensor lengths =
              documents ? lengths_of({0, (last + 1) / 2, last, last, last + last / 2, 2 * last}) : at::Tensor();
          expect_equal(
              std::to_string(tokens) + " tokens, width " + std::to_string(width),
              fast(lengths),
              definition(lengths),
              {random_tensor({2, tokens, 2, 4}, type),
               random_tensor({8, 1, width}, type),
               random_tensor({2, width - 1, 2, 4}, type)});
        }
      }
    }
  }
}

// A hidden tap is not multiplied by zero, which would turn infinities into NaN.
TEST_P(CausalConvCuda, SeesNoOtherDocument) {
  at::Tensor x = random_tensor({1, 80, 8}, at::kFloat);
  const at::Tensor weight = random_tensor({8, 1, 4}, at::kFloat), lengths = lengths_of({0, 40, 41, 80});
  const at::Tensor expected = reference::causal_conv(x.to(at::kDouble), weight.to(at::kDouble), lengths);
  x.select(1, 39).fill_(std::numeric_limits<double>::infinity());
  x.select(1, 40).fill_(std::nan(""));
  const at::Tensor found = here(fast(lengths))({x, weight})[0];
  EXPECT_LE(worst_error(found.narrow(1, 0, 39), expected.narrow(1, 0, 39)), tolerance(at::kFloat));
  EXPECT_LE(worst_error(found.narrow(1, 41, 39), expected.narrow(1, 41, 39)), tolerance(at::kFloat));
}

TEST_P(CausalConvCuda, LeavesFrozenInputsWithoutGradient) {
  for (const auto type : kKernelTypes) {
    const Tensors inputs{
        random_tensor({2, 9, 30}, type), random_tensor({30, 1, 4}, type), random_tensor({2, 3, 30}, type)};
    for (size_t frozen = 0; frozen < 3; ++frozen) {
      std::vector<bool> is_frozen(3, false);
      is_frozen[frozen] = true;
      expect_equal("frozen " + std::to_string(frozen), fast({}), definition({}), inputs, is_frozen);
    }
  }
}

// With tokens before the rows and without, each gradient alone and all but the bias's; a part of a thread's channels,
// whole ones and several blocks of them; several blocks of tokens, and no tokens.
TEST_P(CausalConvCuda, AddsABias) {
  const at::Tensor lengths = lengths_of({0, 5, 139, 140, 141, 280});
  const auto with = [&](auto conv, bool continues, const at::Tensor& borders) -> Operator {
    return [=](const Tensors& in) -> Tensors {
      const at::Tensor own = borders.defined() ? borders.to(in[0].device()) : borders;
      return {conv(in[0], in[1], own, continues ? in[2] : at::Tensor(), in[3])};
    };
  };
  for (const auto type : kKernelTypes) {
    for (const int64_t channels : {5, 16, 300}) {
      for (const int64_t width : {4, 6}) {
        const Tensors inputs{
            random_tensor({2, 140, channels}, type),
            random_tensor({channels, 1, width}, type),
            random_tensor({2, width - 1, channels}, type),
            random_tensor({channels}, type)};
        const std::string what = std::to_string(channels) + " channels, width " + std::to_string(width);
        expect_equal(what, with(causal_conv, true, lengths), with(reference::causal_conv, true, lengths), inputs);
        expect_equal(
            what + ", from zeros",
            with(causal_conv, false, {}),
            with(reference::causal_conv, false, {}),
            inputs,
            {false, false, true, false});
      }
    }
    const Tensors few{
        random_tensor({1, 9, 8}, type),
        random_tensor({8, 1, 4}, type),
        random_tensor({1, 3, 8}, type),
        random_tensor({8}, type)};
    for (size_t only = 0; only < 4; ++only) {
      std::vector<bool> is_frozen(4, true);
      is_frozen[only] = false;
      expect_equal(
          "only " + std::to_string(only),
          with(causal_conv, true, {}),
          with(reference::causal_conv, true, {}),
          few,
          is_frozen);
    }
    expect_equal(
        "frozen bias",
        with(causal_conv, true, {}),
        with(reference::causal_conv, true, {}),
        few,
        {false, false, false, true});
    const Tensors none{random_tensor({0, 9, 8}, type), few[1], random_tensor({0, 3, 8}, type), few[3]};
    expect_equal("no rows", with(causal_conv, true, {}), with(reference::causal_conv, true, {}), none);
  }
}

TEST_P(CausalConvCuda, AcceptsUnalignedAndEmptyTensors) {
  for (const auto type : kKernelTypes) {
    const at::Tensor weight = random_tensor({16, 1, 4}, type);
    const at::Tensor x = there(random_tensor({6 * 16 + 1}, type)).narrow(0, 1, 6 * 16).view({1, 6, 16});
    const at::Tensor expected = reference::causal_conv(x.cpu().to(at::kDouble), weight.to(at::kDouble));
    EXPECT_LE(worst_error(here(fast({}))({x, weight})[0], expected), tolerance(type));
    const Tensors none{random_tensor({0, 5, 16}, type), weight, random_tensor({0, 3, 16}, type)};
    expect_equal("no rows", fast({}), definition({}), none);
  }
}

// There are no kernels for float64.
TEST_P(CausalConvCuda, UsesTheDefinitionOfOtherTypes) {
  const Tensors inputs{random_tensor({1, 5, 3}, at::kDouble), random_tensor({3, 1, 4}, at::kDouble)};
  expect_equal_to_definition("float64", here(fast({}), false), definition({}), inputs);
}

INSTANTIATE_TEST_SUITE_P(, CausalConvCuda, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test
