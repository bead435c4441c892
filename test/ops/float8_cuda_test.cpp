// The CUDA kernels that round matrices to float8, compared with the definition bit for bit.
#include <gtest/gtest.h>

#include "lehr/ops/float8/float8.h"
#include "test/ops/against_reference.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

// Rows and columns with scales from 1e-20 to 1e20, and of zeros.
at::Tensor spread_matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  const auto sizes = [](int64_t count) { return at::randn({count}, at::kDouble).mul(8).exp(); };
  at::Tensor matrix = at::randn({rows, columns}, at::kDouble) * sizes(rows).unsqueeze(1) * sizes(columns);
  matrix[rows / 2].zero_();
  matrix.select(1, columns / 2).zero_();
  matrix[0][0] = 1e-20;
  return matrix.to(type);
}

// Compares all scales, and the values of rows that are finite.
void expect_same(const std::string& what, const Float8Rows& found, const Float8Rows& wanted) {
  ASSERT_EQ(found.values.sizes(), wanted.values.sizes()) << what;
  EXPECT_TRUE(found.values.is_contiguous()) << what;
  const at::Tensor scales = found.inverse_scales.cpu();
  EXPECT_TRUE(at::allclose(scales, wanted.inverse_scales, 0, 0, /*equal_nan=*/true)) << what;
  const at::Tensor finite = wanted.inverse_scales.isfinite().flatten().nonzero().flatten();
  const auto bits = [&](const at::Tensor& values) { return values.cpu().view(at::kByte).index_select(0, finite); };
  EXPECT_TRUE(at::equal(bits(found.values), bits(wanted.values))) << what;
}

class Float8Cuda : public KernelsTest {
 protected:
  void expect_equal(const std::string& what, const at::Tensor& matrix) {
    const Float8Rows rows = reference::to_float8_rows(matrix);
    const Float8Rows columns = reference::to_float8_rows(matrix.t());
    const at::Tensor moved = there(matrix);
    expect_kernels(true, [&] {
      expect_same(what + ", rows", to_float8_rows(moved), rows);
      expect_same(what + ", columns", to_float8_rows(moved.t()), columns);
      const cuda::Float8Both both = cuda::to_float8(moved, true, true);
      expect_same(what + ", rows of both", both.rows, rows);
      expect_same(what + ", columns of both", both.columns, columns);
    });
  }
};

TEST_P(Float8Cuda, EqualTheDefinitionBitForBit) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    // Less than a tile, several tiles, partial tiles; more rows than groups; rows and columns larger than the host's
    // scratch memory; sizes that are no multiple of a pack.
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 16}, {5, 40}, {130, 72}, {256, 64}, {300, 24}, {48, 1100}, {3, 5000}, {33, 37}}) {
      expect_equal(
          std::to_string(rows) + "x" + std::to_string(columns) + " " + c10::toString(type),
          spread_matrix(rows, columns, type));
    }
  }
}

// Every bfloat16 number in a row with 448, which makes the scale 1: the numbers of e4m3, ties, and numbers that become
// subnormal or zero.
TEST_P(Float8Cuda, RoundEveryBfloat16NumberLikeTheDefinition) {
  at::Tensor numbers = at::arange(-32768, 32768, at::kInt).to(at::kShort).view(at::kBFloat16);
  numbers = numbers.masked_select(numbers.to(at::kFloat).abs().le(448));
  numbers = numbers.narrow(0, 0, numbers.numel() / 16 * 16).view({-1, 16}).contiguous();
  const at::Tensor matrix = at::cat({numbers, at::full({numbers.size(0), 16}, 448.0, at::kBFloat16)}, 1);
  expect_equal("all", matrix);
  expect_equal("all in float32", matrix.to(at::kFloat));
}

TEST_P(Float8Cuda, MarkNonFiniteRows) {
  for (const double wrong : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    at::Tensor matrix = random_tensor({40, 48}, at::kBFloat16);
    matrix[7][11] = wrong;
    matrix[39][0] = -wrong;
    expect_equal(std::to_string(wrong), matrix);
    EXPECT_EQ(to_float8_rows(there(matrix)).inverse_scales.isnan().sum().item<int64_t>(), 2);
  }
}

TEST_P(Float8Cuda, AcceptUnalignedMatrices) {
  const at::Tensor base = there(random_tensor({20 * 32 + 1}, at::kFloat));
  const at::Tensor matrix = base.narrow(0, 1, 20 * 32).view({20, 32});
  expect_same("shifted", to_float8_rows(matrix), reference::to_float8_rows(matrix.cpu()));
  const at::Tensor every_second = base.narrow(0, 0, 640).view({20, 32}).slice(1, 0, 32, 2);
  expect_same("with gaps", to_float8_rows(every_second), reference::to_float8_rows(every_second.cpu()));
}

INSTANTIATE_TEST_SUITE_P(, Float8Cuda, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test
