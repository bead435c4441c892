// Grouped matmuls in float8 by ATen's at::_scaled_grouped_mm: on a GPU if there is one, and on the host by a stand-in,
// which checks the rules of the CUDA kernel.
#include <ATen/ops/_scaled_grouped_mm.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include "lehr/ops/float8/float8.h"
#include "lehr/ops/grouped_linear/groups.h"
#include "lehr/ops/grouped_linear_float8/cuda.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "test/ops/against_reference.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

using testing::HasSubstr;

int g_calls = 0;

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
}

// Checks an operand as ATen does: rows (or, of the right operand, columns) without gaps in between elements, at
// multiples of 16 bytes.
void check_operand(const at::Tensor& operand, bool transposed) {
  EXPECT_EQ(operand.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(is_aligned(operand));
  EXPECT_GT(operand.numel(), 0);
  EXPECT_EQ(operand.stride(transposed ? -2 : -1), 1);
  EXPECT_EQ(operand.stride(transposed ? -1 : -2) % 16, 0);
  EXPECT_GE(operand.stride(transposed ? -1 : -2), operand.size(transposed ? -2 : -1));
}

// ATen has this operator on GPUs only.
at::Tensor scaled_grouped_mm(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const std::optional<at::Tensor>& offs,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& scale_result,
    std::optional<at::ScalarType> out_dtype,
    bool fast) {
  ++g_calls;
  check_operand(a, false);
  check_operand(b, true);
  EXPECT_EQ(a.dim(), 2);
  EXPECT_EQ(a.size(-1) % 16, 0);
  EXPECT_EQ(b.size(-1) % 16, 0);
  EXPECT_EQ(b.size(-2) % 16, 0);
  EXPECT_FALSE(bias || scale_result);
  EXPECT_EQ(out_dtype, at::kBFloat16);
  const at::Tensor ends = offs.value();
  EXPECT_EQ(ends.scalar_type(), at::kInt);
  for (const at::Tensor& scale : {scale_a, scale_b}) {
    EXPECT_EQ(scale.scalar_type(), at::kFloat);
    EXPECT_TRUE(scale.is_contiguous());
  }
  const int64_t groups = ends.size(0);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  if (b.dim() == 3) {  // rows of a belong to groups
    EXPECT_EQ(scale_a.sizes(), (std::vector<int64_t>{a.size(0)}));
    EXPECT_EQ(scale_b.sizes(), (std::vector<int64_t>{groups, b.size(2)}));
    at::Tensor output = at::empty({a.size(0), b.size(2)}, a.options().dtype(at::kBFloat16));
    for_each_group(ends, a.size(0), [&](int64_t g, int64_t first, int64_t count) {
      const at::Tensor left = wide(a.narrow(0, first, count)) * wide(scale_a.narrow(0, first, count)).unsqueeze(1);
      output.narrow(0, first, count).copy_(at::mm(left, wide(b[g]) * wide(scale_b[g])));
    });
    return output;
  }
  // The terms of sums belong to groups, which begin at multiples of 16.
  EXPECT_FALSE(fast) << "gradients are summed in float32";
  EXPECT_EQ(scale_a.sizes(), (std::vector<int64_t>{groups * a.size(0)}));
  EXPECT_EQ(scale_b.sizes(), (std::vector<int64_t>{groups * b.size(1)}));
  EXPECT_TRUE(ends.remainder(16).eq(0).all().item<bool>());
  EXPECT_LE(ends[-1].item<int64_t>(), a.size(1));
  at::Tensor output = at::full({groups, a.size(0), b.size(1)}, std::nan(""), a.options().dtype(at::kBFloat16));
  for_each_group(ends, a.size(1), [&](int64_t g, int64_t first, int64_t count) {
    const at::Tensor left = wide(a.narrow(1, first, count)) * wide(scale_a.view({groups, -1})[g]).unsqueeze(1);
    output[g].copy_(at::mm(left, wide(b.narrow(0, first, count)) * wide(scale_b.view({groups, -1})[g])));
  });
  return output;
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_grouped_mm", scaled_grouped_mm);
}

class GroupedLinearFloat8Cuda : public KernelsTest {
 protected:
  void SetUp() override {
    KernelsTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    if (GetParam()) {
      const auto problem = error_of([] { require_grouped_float8(at::kCUDA, at::kBFloat16, "gpu"); });
      if (!problem.empty()) {
        GTEST_SKIP() << problem;
      }
    }
    g_calls = 0;
  }
};

// Relative to the largest value of each group: fast accumulation keeps some 13 bits, and results are rounded.
constexpr double kTolerance = 1.0 / 64;

TEST_P(GroupedLinearFloat8Cuda, EqualsItsDefinition) {
  const at::Tensor ends = at::tensor({0, 3, 3, 40, 41, 41, 57, 57}, at::kInt);  // no multiples of 16, four empty groups
  for (const Float8Recipe recipe : {Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp}) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{16, 16}, {32, 48}, {272, 64}}) {
      const at::Tensor x = random_tensor({57, in}, at::kBFloat16), w = random_tensor({8, out, in}, at::kBFloat16);
      const at::Tensor b = random_tensor({8, out}, at::kBFloat16), g = random_tensor({57, out}, at::kBFloat16);
      const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
      const auto [y, dx, dw] = reference::grouped_linear_float8(wide(x), wide(w), ends, wide(g), recipe);
      const at::Tensor input = there(x).requires_grad_(), weight = there(w).requires_grad_();
      const at::Tensor output = grouped_linear_float8(input, weight, there(ends), {}, recipe);
      output.backward(there(g));
      EXPECT_LE(worst_error(output.cpu(), y), kTolerance);
      EXPECT_LE(worst_error(input.grad().cpu(), dx), kTolerance);
      EXPECT_LE(worst_error(weight.grad().cpu(), dw), kTolerance);
      for (const int64_t group : {0, 2, 5, 7}) {
        EXPECT_TRUE(weight.grad()[group].eq(0).all().item<bool>()) << "group " << group << " has no rows";
      }
      const at::NoGradGuard no_grad;
      const at::Tensor groups = at::searchsorted(ends, at::arange(57, at::kInt), false, /*right=*/true);
      EXPECT_LE(
          worst_error(
              grouped_linear_float8(input, weight, there(ends), there(b), recipe).cpu(),
              y + wide(b).index_select(0, groups)),
          kTolerance);
    }
  }
  if (!GetParam()) {
    EXPECT_EQ(g_calls, 3 * (4 + 3)) << "with a second forward, and wgrad of one recipe by at::_grouped_mm";
  }
}

// The scales have the bits of the definition, and so have the values, at the places of padded groups.
TEST_P(GroupedLinearFloat8Cuda, RoundsGroupsOfRowsLikeTheDefinition) {
  const at::Tensor ends = at::tensor({2, 2, 19, 20}, at::kInt);
  at::Tensor matrix = random_tensor({20, 48}, at::kBFloat16, 5) * random_tensor({1, 48}, at::kBFloat16).exp();
  matrix[1][3] = std::nan("");
  matrix[5][4] = -std::numeric_limits<double>::infinity();
  const at::Tensor moved = there(matrix);
  const at::Tensor largest = cuda::largest_by_group(moved, there(ends));
  const cuda::Float8Groups found = cuda::to_float8_groups(moved, there(ends), largest);
  EXPECT_EQ(found.values.sizes(), (std::vector<int64_t>{48, 80}));
  EXPECT_TRUE(found.values.is_contiguous());
  EXPECT_TRUE(at::equal(found.ends.cpu(), at::tensor({16, 16, 48, 64}, at::kInt)));
  EXPECT_TRUE(largest[1].eq(0).all().item<bool>()) << "a group without rows";
  const at::Tensor values = found.values.cpu().view(at::kByte);
  for_each_group(ends, 20, [&](int64_t g, int64_t first, int64_t count) {
    const Float8Rows wanted = reference::to_float8_rows(matrix.narrow(0, first, count).t());
    const at::Tensor scales = found.inverse_scales[g].cpu();
    EXPECT_TRUE(at::allclose(scales, wanted.inverse_scales.view(-1), 0, 0, /*equal_nan=*/true)) << g;
    const at::Tensor finite = scales.isfinite().nonzero().view(-1);
    EXPECT_EQ(finite.size(0), g == 3 ? 48 : 47) << g;
    const int64_t begin = g == 0 ? 0 : g == 2 ? 16 : 48;
    EXPECT_TRUE(at::equal(
        values.narrow(1, begin, count).index_select(0, finite), wanted.values.view(at::kByte).index_select(0, finite)))
        << g;
    EXPECT_TRUE(values.narrow(1, begin + count, (16 - count % 16) % 16).eq(0).all().item<bool>()) << "padding";
  });
}

TEST_P(GroupedLinearFloat8Cuda, WeightGradientsHaveTheScalesOfAllRanks) {
  const at::Tensor x = random_tensor({20, 32}, at::kBFloat16), w = random_tensor({2, 16, 32}, at::kBFloat16);
  const at::Tensor g = random_tensor({20, 16}, at::kBFloat16), ends = at::tensor({7, 20}, at::kInt);
  const auto gradient = [&](double factor) {
    auto split = c10::make_intrusive<Float8Split>();
    split->tokens = [&](const at::Tensor& numbers) {
      EXPECT_EQ(numbers.sizes(), (std::vector<int64_t>{2 * (16 + 32)}));
      numbers.mul_(factor);
    };
    const Float8SplitScope scope(split);
    const at::Tensor weight = there(w).clone().requires_grad_();
    grouped_linear_float8(there(x), weight, there(ends)).backward(there(g));
    return weight.grad().cpu();
  };
  const at::Tensor alone = gradient(1);
  EXPECT_LE(worst_error(gradient(8), alone), kTolerance) << "smaller elements lose bits only";
  EXPECT_FALSE(at::equal(gradient(std::exp2(10)), alone)) << "with scales of a much larger token";
}

TEST_P(GroupedLinearFloat8Cuda, AcceptsZeroRows) {
  at::Tensor rows = there(at::empty({0, 16}, at::kBFloat16)).requires_grad_(true);
  at::Tensor weight = there(random_tensor({2, 32, 16}, at::kBFloat16)).requires_grad_(true);
  const at::Tensor output = grouped_linear_float8(rows, weight, there(at::zeros({2}, at::kInt)));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{0, 32}));
  output.sum().backward();
  int calls = 0;
  auto split = c10::make_intrusive<Float8Split>();
  split->tokens = [&](const at::Tensor& numbers) {
    EXPECT_TRUE(numbers.eq(0).all().item<bool>());
    ++calls;
  };
  const Float8SplitScope scope(split);
  grouped_linear_float8(rows, weight, there(at::zeros({2}, at::kInt))).sum().backward();
  EXPECT_EQ(calls, 1) << "the other ranks wait for it";
  EXPECT_EQ(rows.grad().sizes(), rows.sizes());
  EXPECT_TRUE(at::equal(weight.grad().cpu(), at::zeros({2, 32, 16}, at::kBFloat16)));
}

TEST_P(GroupedLinearFloat8Cuda, RefusesSizesThatGpusDoNotMultiply) {
  const at::Tensor rows = there(random_tensor({4, 24}, at::kBFloat16));
  const at::Tensor weight = there(random_tensor({1, 16, 24}, at::kBFloat16));
  EXPECT_THAT(
      error_of([&] { grouped_linear_float8(rows, weight, there(at::tensor({4}, at::kInt))); }),
      HasSubstr("multiples of 16, as a GPU requires, found 1x16x24"));
}

INSTANTIATE_TEST_SUITE_P(, GroupedLinearFloat8Cuda, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test
