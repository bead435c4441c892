// Grouped matmuls in float8 on a GPU, for which `ends` stays on the device.
#pragma once

#include "lehr/ops/linear_float8/split_scales.h"

namespace lehr::ops::cuda {

/// The transposes of groups of rows of a matrix (N, k) in float8, beside each other: column r of `values` is a row of
/// the matrix divided by the scales of its group. A group begins at a multiple of 16 columns, and zeros follow it.
struct Float8Groups {
  at::Tensor values;          ///< (k, P) float8_e4m3fn.
  at::Tensor inverse_scales;  ///< (G, k) float32.
  at::Tensor ends;            ///< (G) int32: the columns at which groups end, zeros included.
};

/// Returns the largest elements (G, k) float32 of the columns of each group of rows of a matrix (N, k): infinity for
/// NaN, 0 for groups without rows.
at::Tensor largest_by_group(const at::Tensor& matrix, const at::Tensor& ends);
/// Rounds groups of rows with a scale per group and column, by their largest elements.
Float8Groups to_float8_groups(const at::Tensor& matrix, const at::Tensor& ends, const at::Tensor& largest);

/// Returns rows (N, in) times weight (G, out, in) transposed, as the other functions bfloat16 of multiples of 16.
at::Tensor grouped_float8_product(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends);
/// Returns grad (N, out) times weight.
at::Tensor grouped_float8_input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends);
/// Returns, for each group, its rows of grad transposed times its rows of the input: (G, out, in); zeros for groups
/// without rows. `maximum` is that of Float8Split::tokens.
at::Tensor grouped_float8_weight_gradient(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends, const Float8Split::Maximum& maximum);

}  // namespace lehr::ops::cuda
