// The kernels that round matrices to float8_e4m3fn.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// A matrix (rows, columns) x and its values rounded to float8, y; both contiguous.
template <class T>
struct Float8Call {
  const T* x;
  T* y;
  int64_t rows, columns;
};
/// Columns per job of float8_columns.
constexpr int64_t kFloat8Columns = 64;

/// On the CPU.
template <class T>
struct Float8Kernels {
  /// Rounds rows [first, last) to float8_e4m3fn (float8.h), with one scale per row.
  void (*rows)(const Float8Call<T>& call, int64_t first, int64_t last);
  /// The same with one scale per column; job i has the columns from i * kFloat8Columns on.
  void (*columns)(const Float8Call<T>& call, int64_t first, int64_t last);
};

namespace cuda {
/// A contiguous matrix (rows, columns) that is rounded to float8_e4m3fn (float8.h).
template <class T>
struct Float8Operand {
  const T* x;
  int64_t rows, columns;
  uint8_t* by_row;       ///< (rows, columns), with a scale per row; null if not requested.
  float* row_scales;     ///< (rows): inverse scales.
  uint8_t* by_column;    ///< (columns, rows): transposed, with a scale per column; null if not requested.
  float* column_scales;  ///< (columns): inverse scales.
  float* parts;          ///< (float8_parts(rows), columns): workspace for the scales of columns.
};
/// Returns the number of groups of threads that search the rows for the largest elements of columns.
constexpr int64_t float8_parts(int64_t rows) {
  return rows < 264 ? rows : 264;
}

/// On a GPU, for matrices of at least one element.
template <class T>
struct Float8Launches {
  static constexpr KernelId kId = {
      .name = "to_float8", .element = sizeof(T), .version = 1, .layout = sizeof(Float8Operand<T>)};
  Status (*to_float8)(const Float8Operand<T>& call);
};
}  // namespace cuda

}  // namespace lehr::ops
