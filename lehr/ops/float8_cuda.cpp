// Rounding of matrices to float8 by the kernels of a GPU.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/float8.h"

namespace lehr::ops::cuda {

namespace {
Float8Rows room(int64_t rows, int64_t columns, const at::Tensor& like) {
  return {
      .values = at::empty({rows, columns}, like.options().dtype(at::kFloat8_e4m3fn)),
      .inverse_scales = at::empty({rows, 1}, like.options().dtype(at::kFloat))};
}
}  // namespace

Float8Both to_float8(const at::Tensor& matrix, bool by_row, bool by_column) {
  const at::Tensor from = aligned_for_kernels(matrix.contiguous());
  const int64_t rows = from.size(0), columns = from.size(1);
  Float8Both made;
  at::Tensor parts;
  if (by_row) {
    made.rows = room(rows, columns, from);
  }
  if (by_column) {
    made.columns = room(columns, rows, from);
    parts = at::empty({float8_parts(rows), columns}, made.columns.inverse_scales.options());
  }
  report_pointwise({from, made.rows.values, by_column ? from : at::Tensor(), made.columns.values});
  run<RestTable>("to_float8", from, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto bytes = [](const Float8Rows& to) {
      return to.values.defined() ? static_cast<uint8_t*>(to.values.mutable_data_ptr()) : nullptr;
    };
    return kernels.to_float8(
        {.x = cpu::elements<T>(from),
         .rows = rows,
         .columns = columns,
         .by_row = bytes(made.rows),
         .row_scales = cpu::elements<float>(made.rows.inverse_scales),
         .by_column = bytes(made.columns),
         .column_scales = cpu::elements<float>(made.columns.inverse_scales),
         .parts = cpu::elements<float>(parts)});
  });
  return made;
}

}  // namespace lehr::ops::cuda
