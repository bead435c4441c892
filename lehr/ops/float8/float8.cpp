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
// One scale per row of a contiguous matrix.
at::Tensor rounded_rows(const at::Tensor& matrix) {
  const at::Tensor result = at::empty_like(matrix);
  report_pointwise({matrix, result});
  cpu::run<Float8Kernels>(matrix, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    cpu::run_kernel(matrix, 0, rows, cpu::grain_for(columns), [&](int64_t first, int64_t last) {
      kernels.rows({cpu::elements<T>(matrix), cpu::elements<T>(result), rows, columns}, first, last);
    });
  });
  return result;
}

// One scale per column of each of `count` matrices, which are contiguous one after the other.
at::Tensor rounded_columns(const at::Tensor& matrices, int64_t count, int64_t rows, int64_t columns) {
  const at::Tensor result = at::empty_like(matrices);
  report_pointwise({matrices, result});
  cpu::run<Float8Kernels>(matrices, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const int64_t jobs = (columns + kFloat8Columns - 1) / kFloat8Columns;  // per matrix
    const int64_t grain = cpu::grain_for(kFloat8Columns * rows);
    cpu::run_kernel(matrices, 0, count * jobs, grain, [&](int64_t first, int64_t last) {
      for (int64_t job = first; job < last; ++job) {
        const int64_t begin = job / jobs * rows * columns;
        kernels.columns(
            {cpu::elements<T>(matrices) + begin, cpu::elements<T>(result) + begin, rows, columns},
            job % jobs,
            job % jobs + 1);
      }
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
    return rounded_columns(matrix.t(), 1, matrix.size(1), matrix.size(0)).t();
  }
  return rounded_rows(matrix.contiguous());
}

at::Tensor round_columns_to_float8(const at::Tensor& matrices) {
  const OperatorScope scope(OperatorKind::copy, "lehr::round_columns_to_float8");
  if (!cpu::supports(matrices)) {
    const at::Tensor columns = matrices.transpose(1, 2);
    return values_of(reference::to_float8_rows(columns), matrices.scalar_type()).transpose(1, 2).contiguous();
  }
  return rounded_columns(matrices.contiguous(), matrices.size(0), matrices.size(1), matrices.size(2));
}

}  // namespace lehr::ops
