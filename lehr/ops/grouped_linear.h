// Many linear layers at once, each on its own rows: the products of a mixture of experts.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Rows [ends[g-1], ends[g]) of `input` times weight[g] transposed, for every group g (ends[-1] being 0).
///
/// input (N, in) with the rows of a group together, weight (G, out, in) of the same floating type, ends (G) int32 on
/// the same device, not decreasing, ends[G-1] = N; gives (N, out). A group may be empty: its weight's gradient is zero
/// then. On CUDA in bfloat16 `ends` stays on the device (ATen's grouped product). The weight's gradient can wait
/// (ops/weight_gradients.h). Throws a usage error for shapes and types that do not fit.
at::Tensor grouped_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends);

/// The same by its definition, one ATen product a group.
at::Tensor grouped_linear_reference(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends);

}  // namespace lehr::ops
