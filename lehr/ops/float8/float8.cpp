#include "lehr/ops/float8/float8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/device.h"
#include "lehr/ops/float8/kernels.h"

namespace lehr::ops {

namespace cuda {
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
  run<Float8Launches>("to_float8", from, [&](auto element, const auto& kernels) {
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
}  // namespace cuda

namespace {
// `matrix` is contiguous; one scale per row, or one per column.
at::Tensor rounded(const at::Tensor& matrix, bool by_row) {
  const at::Tensor result = at::empty_like(matrix);
  report_pointwise({matrix, result});
  cpu::run<Float8Kernels>(matrix, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto kernel = by_row ? kernels.rows : kernels.columns;
    const int64_t rows = matrix.size(0);
    const int64_t columns = matrix.size(1);
    const int64_t jobs = by_row ? rows : (columns + kFloat8Columns - 1) / kFloat8Columns;
    const int64_t grain = cpu::grain_for(by_row ? columns : kFloat8Columns * rows);
    cpu::run_kernel(matrix, 0, jobs, grain, [&](int64_t first, int64_t last) {
      kernel({cpu::elements<T>(matrix), cpu::elements<T>(result), rows, columns}, first, last);
    });
  });
  return result;
}
}  // namespace

Float8Rows to_float8_rows(const at::Tensor& matrix) {
  const OperatorScope scope(OperatorKind::copy, "lehr::to_float8_rows");
  if (!cuda::supports(matrix) || matrix.numel() == 0) {
    return reference::to_float8_rows(matrix);
  }
  const bool transposed = !matrix.is_contiguous() && matrix.t().is_contiguous();
  return transposed ? cuda::to_float8(matrix.t(), false, true).columns : cuda::to_float8(matrix, true, false).rows;
}

at::Tensor round_rows_to_float8(const at::Tensor& matrix) {
  const OperatorScope scope(OperatorKind::copy, "lehr::round_rows_to_float8");
  if (!cpu::supports(matrix)) {
    return reference::round_rows_to_float8(matrix);
  }
  if (!matrix.is_contiguous() && matrix.t().is_contiguous()) {
    return rounded(matrix.t(), false).t();
  }
  return rounded(matrix.contiguous(), true);
}

}  // namespace lehr::ops
