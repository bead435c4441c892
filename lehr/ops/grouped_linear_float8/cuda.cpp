// Grouped matmuls in float8 on a GPU, by at::_scaled_grouped_mm within its requirements (compute capability 9.0 and
// 10.0): operands in float8 whose rows are contiguous along the sum, with sizes that are multiples of 16, one scale per
// row and group, results in bfloat16.
//
// In the weight's gradient the sum is over the rows of a group, so operands are transposed, and groups begin at
// multiples of 16 bytes: to_float8_groups pads them with zeros. How many rows there are in all with this padding is
// bounded by the shapes, so that the host waits for nothing. Rows are rounded by Lehr's kernel (ops/float8/kernel.cu);
// transposed weights and groups of rows are rounded in plain ATen.
#include "lehr/ops/grouped_linear_float8/cuda.h"

#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "lehr/ops/float8/float8.h"
#include "lehr/ops/grouped_linear/cuda.h"
#include "lehr/ops/linear_float8/linear_float8.h"

namespace lehr::ops::cuda {

namespace {
at::Tensor begins_of(const at::Tensor& ends) {
  return at::cat({at::zeros({1}, ends.options()), ends.narrow(0, 0, ends.size(0) - 1)});
}

// Returns left (rows without gaps) times right (columns without gaps) for each group, with a scale per row and per
// column. `fast` accumulates in fewer bits than float32 has.
at::Tensor multiply(
    const at::Tensor& left,
    const at::Tensor& left_scales,
    const at::Tensor& right,
    const at::Tensor& right_scales,
    const at::Tensor& ends,
    bool fast) {
  return at::_scaled_grouped_mm(
      left, right, left_scales, right_scales, ends, /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16, fast);
}

// The weights (G, rows, k) of all groups, with a scale per group and row.
at::Tensor multiply_rows(const at::Tensor& rows, const Float8Rows& weights, const at::Tensor& ends, bool fast) {
  const Float8Rows left = to_float8_rows(rows.contiguous());
  return multiply(
      left.values,
      left.inverse_scales.view(-1),
      weights.values.transpose(1, 2),
      weights.inverse_scales.squeeze(-1),
      ends,
      fast);
}
}  // namespace

at::Tensor largest_by_group(const at::Tensor& matrix, const at::Tensor& ends) {
  const at::Tensor offsets = at::cat({at::zeros({1}, ends.options()), ends});
  const auto reduce = [&](const char* how) {  // `unsafe` leaves out checks for which the host would wait
    return at::segment_reduce(matrix, how, {}, {}, offsets, /*axis=*/0, /*unsafe=*/true, /*initial=*/0);
  };
  const at::Tensor largest = at::maximum(reduce("max"), -reduce("min")).to(at::kFloat);
  return at::where(largest == largest, largest, std::numeric_limits<double>::infinity());
}

Float8Groups to_float8_groups(const at::Tensor& matrix, const at::Tensor& ends, const at::Tensor& largest) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1), groups = ends.size(0);
  constexpr int64_t kMultiple = kFloat8Multiple;
  const int64_t most = (rows + groups * (kMultiple - 1) + kMultiple - 1) / kMultiple * kMultiple;
  const at::Tensor begins = begins_of(ends);
  const at::Tensor sizes = (ends - begins + (kMultiple - 1)).bitwise_and(~(kMultiple - 1));
  const at::Tensor padded_ends = sizes.cumsum(0).to(at::kInt);
  // A row of the matrix belongs to the first group that ends after it.
  const at::Tensor row = at::arange(rows, ends.options());
  const at::Tensor group = at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true);
  const at::Tensor place = row + (padded_ends - sizes - begins).index_select(0, group);
  // Computes the scales alone: each column of a group is a row of one zero, which is rounded by the largest element.
  const Float8Rows scales = to_float8_rows_by(largest.view(-1), at::zeros({groups * columns, 1}, matrix.options()));
  const at::Tensor inverse = scales.inverse_scales.view({groups, columns});
  const at::Tensor factor = inverse.reciprocal().to(matrix.scalar_type());  // exact: a power of two
  const at::Tensor rounded = (matrix * factor.index_select(0, group)).to(at::kFloat8_e4m3fn);
  at::Tensor padded = at::zeros({most, columns}, matrix.options().dtype(at::kByte));
  padded.index_copy_(0, place.to(at::kLong), rounded.view(at::kByte));
  return {.values = padded.t().contiguous().view(at::kFloat8_e4m3fn), .inverse_scales = inverse, .ends = padded_ends};
}

at::Tensor grouped_float8_product(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends) {
  if (rows.size(0) == 0) {
    return at::zeros({0, weight.size(1)}, rows.options());
  }
  const Float8Rows all = to_float8_rows(weight.reshape({-1, weight.size(2)}));
  const Float8Rows weights{
      .values = all.values.view(weight.sizes()),
      .inverse_scales = all.inverse_scales.view({weight.size(0), weight.size(1), 1})};
  return multiply_rows(rows, weights, ends, /*fast=*/true);
}

at::Tensor grouped_float8_input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) {
  if (grad.size(0) == 0) {
    return at::zeros({0, weight.size(2)}, grad.options());
  }
  return multiply_rows(grad, reference::to_float8_rows(weight.transpose(1, 2)), ends, /*fast=*/false);
}

at::Tensor grouped_float8_weight_gradient(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends, const Float8Split::Maximum& maximum) {
  const int64_t outputs = grad.size(1), inputs = input.size(1);
  if (grad.size(0) == 0 && !maximum) {
    return at::zeros({ends.size(0), outputs, inputs}, grad.options());
  }
  const at::Tensor largest =
      at::cat({largest_by_group(grad, ends), largest_by_group(input, ends)}, 1);  // (G, out + in)
  if (maximum) {
    maximum(largest.view(-1));
  }
  if (grad.size(0) == 0) {
    return at::zeros({ends.size(0), outputs, inputs}, grad.options());
  }
  const Float8Groups left = to_float8_groups(grad, ends, largest.narrow(1, 0, outputs).contiguous());
  const Float8Groups right = to_float8_groups(input, ends, largest.narrow(1, outputs, inputs).contiguous());
  const at::Tensor gradient = multiply(
      left.values,
      left.inverse_scales.view(-1),
      right.values.t(),
      right.inverse_scales.view(-1),
      left.ends,
      /*fast=*/false);
  clear_groups_without_rows(gradient, ends);
  return gradient;
}

}  // namespace lehr::ops::cuda
