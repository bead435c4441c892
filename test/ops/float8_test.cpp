#include "lehr/ops/float8/float8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "test/ops/against_reference.h"

namespace lehr::ops {
namespace {

using test::everywhere;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The definition, element by element; the rounding itself is LibTorch's.
at::Tensor definition(const at::Tensor& matrix) {
  const at::Tensor x = matrix.to(at::kDouble).contiguous();
  at::Tensor result = at::empty_like(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const double* from = x[row].const_data_ptr<double>();
    auto* to = result[row].mutable_data_ptr<double>();
    double largest = 0;
    for (int64_t i = 0; i < x.size(1); ++i) {
      largest = std::isfinite(from[i]) ? std::max(largest, std::abs(from[i])) : kInfinity;
    }
    const double scale = std::exp2(std::floor(std::log2(448 / std::max(largest, 1e-12))));
    for (int64_t i = 0; i < x.size(1); ++i) {
      const c10::Float8_e4m3fn eight(static_cast<float>(from[i] * scale));
      to[i] = std::isfinite(largest) ? static_cast<double>(static_cast<float>(eight)) / scale : std::nan("");
    }
  }
  return result;
}

void expect_same(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  EXPECT_EQ(found.sizes(), wanted.sizes()) << what;
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), wanted, 0, 0, /*equal_nan=*/true)) << what;
}

// Rows of very different magnitude, each with elements over 40 powers of two.
at::Tensor wide_matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  const auto powers = [](at::IntArrayRef sizes, int64_t least, int64_t most) {
    return at::pow(2.0, at::randint(least, most, sizes).to(at::kDouble));
  };
  return (at::randn({rows, columns}, at::kDouble) * powers({rows, columns}, -30, 10) * powers({rows, 1}, -20, 20))
      .to(type);
}

TEST(Float8, EqualsItsDefinition) {
  everywhere([](at::ScalarType type, const std::string& what) {
    for (const auto& [rows, columns] :
         {std::pair{1, 1},
          std::pair{1, 40},
          std::pair{3, 17},
          std::pair{70, 64},
          std::pair{33, 131},
          std::pair{40, 1}}) {
      const at::Tensor matrix = wide_matrix(rows, columns, type);
      const at::Tensor wanted = definition(matrix);
      expect_same(round_rows_to_float8(matrix), wanted, what);
      expect_same(reference::round_rows_to_float8(matrix), wanted, what + ", in ATen");
      const at::Tensor transposed = matrix.t().contiguous().t();  // one scale per column of the stored matrix
      const at::Tensor by_column = round_rows_to_float8(transposed);
      expect_same(by_column, wanted, what + ", transposed");
      EXPECT_TRUE(rows == 1 || columns == 1 || by_column.t().is_contiguous()) << what;
      expect_same(reference::round_rows_to_float8(transposed), wanted, what + ", transposed, in ATen");
      const at::Tensor with_gaps = at::cat({matrix, matrix}, 1).narrow(1, 0, columns);
      expect_same(round_rows_to_float8(with_gaps), wanted, what + ", with gaps");
      EXPECT_EQ(round_rows_to_float8(matrix).scalar_type(), type);
    }
  });
}

// Around the steps of the scale, and at both ends of the range of float32.
TEST(Float8, ScalesByTheLargestElement) {
  at::manual_seed(1);
  std::vector<double> edges{0, 1e-30, 1e-13, 1e-12, 1.1e-12, 3e38};
  for (const int64_t power : {-30, -9, 0, 1, 40}) {
    for (const double near : {1.75, 1.75 + 1.0 / 128, 1.75 - 1.0 / 128, 1.0, 2 - 1.0 / 128}) {
      edges.push_back(std::ldexp(near, static_cast<int>(power)));
    }
  }
  for (const at::ScalarType type : test::all_types()) {
    const at::Tensor largest = at::tensor(edges, at::kDouble).unsqueeze(1);
    const at::Tensor rest = (2 * at::rand({largest.size(0), 19}, at::kDouble) - 1) * largest;
    const at::Tensor matrix = at::cat({rest, largest}, 1).to(type);
    const at::Tensor wanted = definition(matrix);
    expect_same(round_rows_to_float8(matrix), wanted, c10::toString(type));
    expect_same(round_rows_to_float8(matrix.t().contiguous().t()), wanted, c10::toString(type));
    expect_same(reference::round_rows_to_float8(matrix), wanted, c10::toString(type));
    EXPECT_TRUE(round_rows_to_float8(matrix)[0].eq(0).all().item<bool>()) << "zeros stay zeros";
  }
}

// All 254 finite numbers of float8, and the midpoints between them, which round to even.
TEST(Float8, RoundsToNearestAndTiesToEven) {
  std::vector<float> numbers;
  for (int bits = 0; bits < 127; ++bits) {
    numbers.push_back(
        static_cast<float>(c10::Float8_e4m3fn(static_cast<uint8_t>(bits), c10::Float8_e4m3fn::from_bits())));
  }
  std::vector<float> row = {448}, wanted = {448};
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    const float middle = (numbers[i] + numbers[i + 1]) / 2;
    const float even = i % 2 == 0 ? numbers[i] : numbers[i + 1];
    for (const float sign : {1.0F, -1.0F}) {
      row.insert(row.end(), {sign * numbers[i], sign * middle, sign * std::nextafter(middle, 500.0F)});
      wanted.insert(wanted.end(), {sign * numbers[i], sign * even, sign * numbers[i + 1]});
    }
  }
  const at::Tensor matrix = at::tensor(row).unsqueeze(0);
  for (const Arch arch : test::supported_archs()) {
    const ArchScope scope(arch);
    EXPECT_TRUE(at::equal(round_rows_to_float8(matrix), at::tensor(wanted).unsqueeze(0)));
  }
}

// The bound: half a unit in the last of three mantissa bits, 2^-4. Below the smallest normal number, 2^-6, where the
// largest element is scaled to at least 224: half of 2^-9, which is less than 2^-17 of the largest.
TEST(Float8, HasARelativeErrorOfAtMostOneSixteenth) {
  at::manual_seed(2);
  const at::Tensor matrix = wide_matrix(200, 100, at::kDouble);
  const at::Tensor error = (round_rows_to_float8(matrix) - matrix).abs();
  const at::Tensor largest = matrix.abs().amax(1, true);
  const at::Tensor allowed = at::where(
      matrix.abs() > std::exp2(-13) * largest,
      std::exp2(-4) * matrix.abs(),
      (std::exp2(-17) * largest).expand_as(matrix));
  EXPECT_TRUE(error.le(allowed).all().item<bool>());
  EXPECT_GT((error / matrix.abs()).masked_select(matrix.abs() > std::exp2(-13) * largest).max().item<double>(), 0.058)
      << "the bound is reached nearly";
}

TEST(Float8, MakesRowsWithNonFiniteElementsNaN) {
  for (const double wrong : {kInfinity, -kInfinity, std::nan("")}) {
    everywhere([&](at::ScalarType type, const std::string& what) {
      at::Tensor matrix = wide_matrix(5, 70, type);
      matrix[3][37] = wrong;
      for (const at::Tensor& found :
           {round_rows_to_float8(matrix),
            round_rows_to_float8(matrix.t().contiguous().t()),
            reference::round_rows_to_float8(matrix)}) {
        expect_same(found, definition(matrix), what);
        EXPECT_TRUE(found[3].isnan().all().item<bool>()) << what;
        EXPECT_EQ(found.isnan().sum().item<int64_t>(), 70) << what;
      }
    });
  }
}

// The layout that at::_scaled_mm requires of its operands; only on a GPU does it take one scale per row.
TEST(Float8, HasTheLayoutThatScaledMmRequiresOnAGpu) {
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor matrix = wide_matrix(32, 48, type);
    for (const at::Tensor& one : {matrix, matrix.t()}) {
      const Float8Rows rows = to_float8_rows(one);
      EXPECT_EQ(rows.values.scalar_type(), at::kFloat8_e4m3fn);
      EXPECT_TRUE(rows.values.is_contiguous()) << "and so its transpose is column-major";
      EXPECT_EQ(rows.inverse_scales.scalar_type(), at::kFloat);
      EXPECT_EQ(rows.inverse_scales.sizes(), (std::vector<int64_t>{one.size(0), 1}));
      EXPECT_TRUE(rows.inverse_scales.is_contiguous());
      expect_same(rows.values.to(at::kDouble) * rows.inverse_scales.to(at::kDouble), definition(one), "");
    }
  }
}

TEST(Float8, AcceptsZeroRows) {
  EXPECT_EQ(round_rows_to_float8(at::empty({0, 3})).sizes(), (std::vector<int64_t>{0, 3}));
}

}  // namespace
}  // namespace lehr::ops
