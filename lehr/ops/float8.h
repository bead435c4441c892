// Matrices rounded to float8, each row with a scale of its own: what products in float8 multiply.
//
// A row's scale is the largest power of two that keeps its largest element within 448, the largest number of
// float8_e4m3fn; an element is multiplied by it, rounded to nearest even, and divided again. So each element keeps four
// leading bits (a relative error of 2^-4 at most), and what is smaller than 2^-13 of the largest element of its row
// loses more (an absolute error below 2^-17 of that). Scales are powers of two, as in torchao's row-wise recipe,
// because they are then exact: rounding costs what e4m3 costs and no more, the numbers fit into bfloat16, and which
// scale it was shows in those small elements alone.
//
// A largest element below 1e-12 counts as 1e-12, so that rows of zeros stay zeros. float8_e4m3fn has no infinity: a row
// with an element that is not finite becomes NaN as a whole, and so does what is multiplied with it.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The rows of a matrix (m, k) in float8: row r stands for values[r] * inverse_scales[r].
struct Float8Rows {
  at::Tensor values;          ///< (m, k) float8_e4m3fn, rows without gaps.
  at::Tensor inverse_scales;  ///< (m, 1) float32.
};

/// The rows of a matrix (m, k), k > 0, or of a transposed view of one, in float8. In plain ATen; not differentiable.
Float8Rows to_float8_rows(const at::Tensor& matrix);

/// The numbers that to_float8_rows keeps, in the type of the matrix (float32, float64, bfloat16), laid out as the
/// matrix is if that or its transpose is without gaps. On the CPU one pass that finds the largest elements, and one
/// that rounds. Not differentiable.
at::Tensor round_rows_to_float8(const at::Tensor& matrix);

namespace reference {
/// The same, from to_float8_rows.
at::Tensor round_rows_to_float8(const at::Tensor& matrix);
}  // namespace reference

}  // namespace lehr::ops
