// Embedding lookup, and the check of ids on a GPU.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns rows `ids` (..., int32 or int64) of `table` (V, H) as (..., H). The gradient of the table is dense: zero
/// except in the rows that were looked up. On the CPU it is summed in float32 (float64 for float64) in the order of the
/// ids, with one rounding at the end, so it does not depend on the number of threads. On a GPU, and in other dtypes,
/// the gradient is ATen's. Throws a usage error for other shapes and dtypes. For ids outside of the table ATen throws
/// its own error.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids);

/// Returns `ids` (..., int32 or int64) as int64, with 0 in place of ids outside of a vocabulary of `size`. The first
/// such id is recorded in `note` (2) int64, unless one is recorded already: its position in `ids` + 1, and the id. The
/// note stays zero if all ids are valid. The host does not wait: a training step on a GPU checks the note when its
/// results are read. It is one kernel where there are kernels for the device of the ids, else plain ATen. Throws a
/// usage error for a note of another shape or dtype, or on another device.
at::Tensor known_ids(const at::Tensor& ids, int64_t size, const at::Tensor& note);

namespace reference {
/// The same in plain ATen.
at::Tensor known_ids(const at::Tensor& ids, int64_t size, const at::Tensor& note);
}  // namespace reference

}  // namespace lehr::ops
