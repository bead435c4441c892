#include "lehr/ops/float8.h"

#include <ATen/ops/empty_like.h>

#include "lehr/base/operation_meter.h"
#include "lehr/base/operator_profile.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"

namespace lehr::ops {

namespace {
// `matrix` is contiguous; one scale per row, or one per column.
at::Tensor rounded(const at::Tensor& matrix, bool by_row) {
  const at::Tensor result = at::empty_like(matrix);
  report_pointwise({matrix, result});
  cpu::with_element_type(matrix.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& table = kernels<T>();
    const auto kernel = by_row ? table.float8_rows : table.float8_columns;
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
