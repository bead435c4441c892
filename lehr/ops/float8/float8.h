// Rounding of matrices to float8 with a scale per row, for float8 matmuls.
//
// The scale of a row is the largest power of two that keeps its largest element within 448, the largest number of
// float8_e4m3fn. An element is multiplied by the scale, rounded to nearest even, and divided again. So each element
// keeps four leading bits (a relative error of at most 2^-4); elements below 2^-13 of the largest element of their row
// lose more (an absolute error below 2^-17 of that element). Scales are powers of two, as in torchao's row-wise recipe,
// because scaling is then exact: the only error is that of e4m3, the scaled numbers fit into bfloat16, and the choice
// of the scale affects only those small elements.
//
// A largest element below 1e-12 counts as 1e-12, so that rows of zeros stay zeros. float8_e4m3fn has no infinity: a row
// with an element that is not finite becomes NaN as a whole, and so do the results of matmuls with it.
#pragma once

#include <functional>
#include <utility>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The rows of a matrix (m, k) in float8: row r is values[r] * inverse_scales[r].
struct Float8Rows {
  at::Tensor values;          ///< (m, k) float8_e4m3fn, rows without gaps.
  at::Tensor inverse_scales;  ///< (m, 1) float32.
};

/// Rounds the rows of a matrix (m, k), k > 0, or of a transposed view of one, to float8. On a GPU with kernels this
/// takes one pass for a matrix and two for a transposed view; elsewhere it runs in plain ATen. Not differentiable.
Float8Rows to_float8_rows(const at::Tensor& matrix);

/// Returns the values that to_float8_rows represents, in the dtype of the matrix (float32, float64, bfloat16), with the
/// layout of the matrix if that or its transpose is contiguous. On the CPU one pass finds the largest elements, and one
/// rounds. Not differentiable.
at::Tensor round_rows_to_float8(const at::Tensor& matrix);

/// The same for a batch (G, r, k) of matrices with a scale per column of each matrix. Not differentiable.
at::Tensor round_columns_to_float8(const at::Tensor& matrices);

/// Returns the largest elements (m) float32 of the rows of a matrix (m, k), which may be empty: infinity for NaN, which
/// a maximum over ranks may lose, and 0 for rows without elements. In plain ATen.
at::Tensor largest_of_rows(const at::Tensor& matrix);

/// Rounds the rows of a matrix by given largest elements, which may be those of longer rows. In plain ATen.
Float8Rows to_float8_rows_by(const at::Tensor& largest, const at::Tensor& matrix);

/// Returns the values that the rows represent, in `type`.
at::Tensor values_of(const Float8Rows& rows, at::ScalarType type);

/// The scales of two matrices (m, k) and (n, k) whose rows continue on other ranks: `maximum` replaces the largest
/// elements of this rank's parts, as a vector (m + n) float32, by those of the whole rows. In plain ATen.
std::pair<Float8Rows, Float8Rows> to_float8_rows_over_ranks(
    const at::Tensor& a, const at::Tensor& b, const std::function<void(const at::Tensor& largest)>& maximum);

namespace reference {
/// The same in plain ATen, for a matrix or a batch (..., m, k) of matrices.
Float8Rows to_float8_rows(const at::Tensor& matrix);
/// The same, from reference::to_float8_rows.
at::Tensor round_rows_to_float8(const at::Tensor& matrix);
}  // namespace reference

namespace cuda {
/// A matrix (m, k) of at least one element that `supports` accepts, in float8: its rows, the rows of its
/// transpose, or both with one search for scales. Undefined where not requested.
struct Float8Both {
  Float8Rows rows = {};     ///< (m, k)
  Float8Rows columns = {};  ///< (k, m)
};
Float8Both to_float8(const at::Tensor& matrix, bool by_row, bool by_column);
}  // namespace cuda

}  // namespace lehr::ops
