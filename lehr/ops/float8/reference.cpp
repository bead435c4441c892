// Rounding of rows to float8 in plain ATen: the definition, which also runs on a GPU without kernels.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "lehr/ops/float8/float8.h"

namespace lehr::ops {

namespace {
// Returns 2^exponents, built from bits: pow and ldexp may be inexact on a GPU.
at::Tensor power_of_two(const at::Tensor& exponents) {
  return (exponents + 127).bitwise_left_shift(23).view(at::kFloat);
}
// at::frexp, which has no meta kernel.
std::tuple<at::Tensor, at::Tensor> split_number(const at::Tensor& x) {
  return x.is_meta() ? std::tuple(at::empty_like(x), at::empty_like(x, x.options().dtype(at::kInt))) : at::frexp(x);
}
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the largest elements (..., m) of the rows of matrices (..., m, k); NaN for rows with NaN.
at::Tensor norms_of_rows(const at::Tensor& matrix) {
  return at::linalg_vector_norm(matrix, kInfinity, {-1}).to(at::kFloat);
}
}  // namespace

Float8Rows to_float8_rows_by(const at::Tensor& largest_elements, const at::Tensor& matrix) {
  constexpr double kLeast = 1e-12;
  const at::Tensor largest = largest_elements.unsqueeze(-1);
  const at::Tensor finite = largest < kInfinity;  // false for NaN too
  // largest = m 2^e with 0.5 <= m < 1, and 448 = 0.875 * 2^9.
  const auto [mantissa, exponent] = split_number(at::where(finite, largest.clamp_min(kLeast), 1.0));
  const at::Tensor power = 9 - exponent - (mantissa > 0.875).to(at::kInt);
  const at::Tensor scaled = matrix * power_of_two(power).to(matrix.scalar_type());  // exact
  return {
      .values = scaled.to(at::kFloat8_e4m3fn).contiguous(),
      .inverse_scales = at::where(finite, power_of_two(-power), std::numeric_limits<double>::quiet_NaN())};
}

Float8Rows reference::to_float8_rows(const at::Tensor& matrix) {
  return to_float8_rows_by(norms_of_rows(matrix), matrix);
}

at::Tensor largest_of_rows(const at::Tensor& matrix) {
  if (matrix.size(-1) == 0) {
    return at::zeros({matrix.size(0)}, matrix.options().dtype(at::kFloat));
  }
  const at::Tensor largest = norms_of_rows(matrix);
  return at::where(largest == largest, largest, kInfinity);  // isnan has no meta kernel
}

std::pair<Float8Rows, Float8Rows> to_float8_rows_over_ranks(
    const at::Tensor& a, const at::Tensor& b, const std::function<void(const at::Tensor& largest)>& maximum) {
  const at::Tensor largest = at::cat({largest_of_rows(a), largest_of_rows(b)});
  maximum(largest);
  return {
      to_float8_rows_by(largest.narrow(0, 0, a.size(0)), a),
      to_float8_rows_by(largest.narrow(0, a.size(0), b.size(0)), b)};
}

at::Tensor values_of(const Float8Rows& rows, at::ScalarType type) {
  return rows.values.to(type) * rows.inverse_scales.to(type);
}

at::Tensor reference::round_rows_to_float8(const at::Tensor& matrix) {
  return values_of(to_float8_rows(matrix), matrix.scalar_type());
}

}  // namespace lehr::ops
