// Rows of a table.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Rows `ids` (..., int32 or int64) of `table` (V, H): (..., H). The gradient of the table is dense: zero but in the
/// rows that were looked up. On the CPU it is summed in float32 (float64 for float64) with one rounding at the end, in
/// the order of the ids, so that threads do not change it; on a GPU, and in other types, it is ATen's. Throws a usage
/// error for other shapes and types; ids outside of the table are an error of ATen's.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids);

}  // namespace lehr::ops
