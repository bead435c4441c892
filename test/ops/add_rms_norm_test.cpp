// add_rms_norm, the fused addition and norm of a residual stream: compared with its definition, and with the two
// separate calls.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/meter/memory_meter.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "test/ops/against_reference.h"
#include "test/ops/gradients.h"

namespace lehr::ops::test {
namespace {

constexpr double kEps = 0.3;  // as in rms_norm_test.cpp
constexpr double kSumOfRounded =
    4;  // in units of tolerance(): gradients sum terms of either sign that were rounded before
const std::vector<NormWeight> kKinds = {NormWeight::plain, NormWeight::zero_centered};

Tensors values(const std::tuple<at::Tensor, at::Tensor>& sum_and_normed) {
  return {std::get<0>(sum_and_normed), std::get<1>(sum_and_normed)};
}

// The inputs are {hidden_states, branch, weight} or {hidden_states, weight}.
Operator fused(NormWeight kind = NormWeight::plain) {
  return [kind](const Tensors& in) {
    return values(add_rms_norm(in[0], in.size() == 3 ? in[1] : at::Tensor(), in.back(), kEps, kind));
  };
}
Operator definition(NormWeight kind = NormWeight::plain) {
  return [kind](const Tensors& in) {
    return values(reference::add_rms_norm(in[0], in.size() == 3 ? in[1] : at::Tensor(), in.back(), kEps, kind));
  };
}
Tensors two_calls(const Tensors& in, NormWeight kind) {
  const at::Tensor sum = in[0] + in[1];
  return {sum, rms_norm(sum, in[2], kEps, kind)};
}

Tensors random_inputs(int64_t rows, int64_t size, at::ScalarType type, bool branch = true) {
  Tensors inputs = {random_tensor({rows, size}, type), random_tensor({rows, size}, type), random_tensor({size}, type)};
  if (!branch) {
    inputs.erase(inputs.begin() + 1);
  }
  return inputs;
}

Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().set_requires_grad(true));
  }
  return leaves;
}

TEST(AddRmsNorm, EqualsItsDefinitionForAllSizesAndTypes) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const NormWeight kind : kKinds) {
      for (const int64_t size : {7, 17, 64, 127, 1024, 4099}) {
        for (const bool branch : {false, true}) {
          expect_equal_to_definition(
              where + ", " + std::to_string(size) + (branch ? ", with" : ", without") + " a branch",
              fused(kind),
              definition(kind),
              random_inputs(size < 100 ? 130 : 3, size, type, branch),
              {},
              kSumOfRounded);
        }
      }
    }
  });
}

TEST(AddRmsNorm, EqualsTheTwoCallsBitForBit) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const NormWeight kind : kKinds) {
      const Tensors leaves = leaves_of(random_inputs(40, 131, type));
      const Tensors expected = two_calls(leaves, kind);
      const Tensors found = fused(kind)(leaves);
      const at::NoGradGuard no_grad;
      const Tensors without_gradients = fused(kind)(leaves);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << where << ", value " << i;
        EXPECT_TRUE(at::equal(without_gradients[i], expected[i])) << where << " without gradients, value " << i;
      }
    }
  });
}

TEST(AddRmsNorm, LeavesFrozenInputsWithoutGradient) {
  const Tensors inputs = random_inputs(9, 33, at::kFloat);
  for (int frozen = 1; frozen < 8; ++frozen) {
    const std::vector<bool> which = {(frozen & 1) != 0, (frozen & 2) != 0, (frozen & 4) != 0};
    expect_equal_to_definition(
        "frozen: " + std::to_string(frozen), fused(), definition(), inputs, which, kSumOfRounded);
  }
}

TEST(AddRmsNorm, ASumOfFrozenInputsNeedsNoGradient) {
  Tensors inputs = random_inputs(9, 33, at::kFloat);
  inputs[2].set_requires_grad(true);
  for (const at::Tensor& branch : {inputs[1], at::Tensor()}) {
    const auto [sum, normed] = add_rms_norm(inputs[0], branch, inputs[2], kEps);
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_TRUE(normed.requires_grad());
  }
}

TEST(AddRmsNorm, WithoutABranchTheSumIsTheHiddenStates) {
  const Tensors leaves = leaves_of(random_inputs(9, 33, at::kFloat, false));
  at::Tensor sum = std::get<0>(add_rms_norm(leaves[0], {}, leaves[1], kEps));
  EXPECT_EQ(sum.data_ptr(), leaves[0].data_ptr());
  EXPECT_THAT(error_of([&] { sum.add_(1); }), testing::HasSubstr("modified inplace")) << "they are the caller's";
}

TEST(AddRmsNorm, AnUnusedOutputAddsNoGradient) {
  const Tensors leaves = leaves_of(random_inputs(9, 33, at::kFloat));
  const at::Tensor incoming = random_tensor({9, 33}, at::kFloat);
  std::get<0>(add_rms_norm(leaves[0], leaves[1], leaves[2], kEps)).backward(incoming);
  const Tensors of_sum = take_gradients(leaves);
  EXPECT_TRUE(at::equal(of_sum[0], incoming));
  EXPECT_TRUE(at::equal(of_sum[1], incoming));
  EXPECT_FALSE(of_sum[2].defined());

  std::get<1>(add_rms_norm(leaves[0], leaves[1], leaves[2], kEps)).backward(incoming);
  const Tensors of_normed = take_gradients(leaves);
  two_calls(leaves, NormWeight::plain)[1].backward(incoming);
  const Tensors expected = take_gradients(leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::equal(of_normed[i], expected[i])) << i;
  }
}

TEST(AddRmsNorm, TakesStridedInputsAndGradients) {
  const Tensors inputs = {
      random_tensor({4, 33, 5}, at::kFloat).transpose(1, 2),
      random_tensor({5, 4, 33}, at::kFloat).transpose(0, 1),
      random_tensor({66}, at::kFloat).slice(0, 0, 66, 2)};
  expect_equal_to_definition("strided", fused(), definition(), inputs, {}, kSumOfRounded);

  const Tensors leaves = leaves_of(random_inputs(33, 33, at::kFloat));
  const Tensors incoming = {
      random_tensor({33, 1}, at::kFloat).expand({33, 33}), random_tensor({33, 33}, at::kFloat).t()};
  torch::autograd::backward(fused()(leaves), incoming);
  const Tensors strided = take_gradients(leaves);
  torch::autograd::backward(fused()(leaves), {incoming[0].contiguous(), incoming[1].contiguous()});
  const Tensors dense = take_gradients(leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::equal(strided[i], dense[i])) << i;
  }
}

TEST(AddRmsNorm, AcceptsZeroRowsAndTypesWithoutKernels) {
  expect_equal_to_definition("no rows", fused(), definition(), random_inputs(0, 33, at::kFloat));
  const Tensors half = random_inputs(3, 32, at::kHalf);
  const Tensors found = fused()(half), expected = definition()(half);
  EXPECT_TRUE(at::equal(found[0], expected[0]));
  EXPECT_TRUE(at::equal(found[1], expected[1]));
}

TEST(AddRmsNorm, DoesNotDependOnTheNumberOfThreads) {
  const Tensors leaves = leaves_of(random_inputs(1000, 96, at::kFloat));
  const Tensors incoming = {random_tensor({1000, 96}, at::kFloat), random_tensor({1000, 96}, at::kFloat)};
  const auto run = [&] {
    Tensors results = fused()(leaves);
    torch::autograd::backward(results, incoming);
    for (const at::Tensor& gradient : take_gradients(leaves)) {
      results.push_back(gradient);
    }
    return results;
  };
  const int threads = at::get_num_threads();
  const Tensors many = run();
  at::set_num_threads(1);
  const Tensors one = run();
  at::set_num_threads(threads);
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i], many[i])) << i;
  }
}

// Bytes that are live after forward, and after the results are destroyed; without a backward, which would free them
// anyway.
std::pair<int64_t, int64_t> bytes_kept(const Tensors& leaves, const Operator& op) {
  const MemoryMeter memory(at::kCPU);
  int64_t with_results = 0;
  {
    const Tensors results = op(leaves);
    with_results = memory.now();
  }
  return {with_results, memory.now()};
}

TEST(AddRmsNorm, SavesTheSameBytesAsTheTwoCallsAndFreesThemWithItsResults) {
  for (const bool branch : {false, true}) {
    Tensors leaves = leaves_of(random_inputs(64, 32, at::kFloat, branch));
    leaves.push_back(at::randn({8, 32}).set_requires_grad(true));
    const auto reader = [&](const Tensors& in, const std::tuple<at::Tensor, at::Tensor>& found) -> Tensors {
      EXPECT_FALSE(can_recompute(std::get<0>(found)));
      EXPECT_TRUE(can_recompute(std::get<1>(found)));
      return {std::get<0>(found), ops::linear(std::get<1>(found), in.back())};
    };
    const auto in_one = bytes_kept(leaves, [&](const Tensors& in) {
      return reader(in, add_rms_norm(in[0], branch ? in[1] : at::Tensor(), in[in.size() - 2], kEps));
    });
    const auto in_two = bytes_kept(leaves, [&](const Tensors& in) {
      const at::Tensor sum = branch ? in[0] + in[1] : in[0];
      return reader(in, {sum, rms_norm(sum, in[in.size() - 2], kEps)});
    });
    EXPECT_EQ(in_one, in_two);
    EXPECT_EQ(in_one.first, 4 * (64 * 32 * (branch ? 1 : 0) + 64 + 64 * 8)) << "the sum, a number a row, the product";
    EXPECT_EQ(in_one.second, 0);
  }
}

TEST(AddRmsNorm, RefusesInvalidShapesAndTypes) {
  const at::Tensor x = at::ones({2, 8}), weight = at::ones({8});
  EXPECT_THAT(
      error_of([&] { add_rms_norm(x, x, at::ones({7}), kEps); }),
      testing::HasSubstr(
          "add_rms_norm: expected a weight of the input's last dimension, found input 2x8 and weight 7"));
  EXPECT_THAT(
      error_of([&] {
        add_rms_norm(x, at::ones({1, 8}), weight, kEps);
      }),
      testing::HasSubstr("2x8 Float, found 1x8"));
  EXPECT_THAT(
      error_of([&] { add_rms_norm(x, x.to(at::kDouble), weight, kEps); }),
      testing::HasSubstr("2x8 Float, found 2x8 Double"));
  at::Tensor leaf = at::ones({2, 8}).set_requires_grad(true);
  const at::Tensor sum = std::get<1>(add_rms_norm(leaf, leaf, weight, kEps)).sum();
  EXPECT_THAT(
      error_of([&] { torch::autograd::grad({sum}, {leaf}, {}, true, true); }),
      testing::HasSubstr("differentiated again"));
}

TEST(AddRmsNorm, DetectsAnInplaceWriteToTheSum) {
  const Tensors leaves = leaves_of(random_inputs(9, 33, at::kFloat));
  const Tensors outputs = values(add_rms_norm(leaves[0], leaves[1], leaves[2], kEps));
  {
    const at::NoGradGuard no_grad;
    at::Tensor(outputs[0]).zero_();
  }
  EXPECT_THAT(error_of([&] { outputs[1].sum().backward(); }), testing::HasSubstr("modified by an inplace operation"));
}

}  // namespace
}  // namespace lehr::ops::test
