// Grouped matmul: one linear layer per expert, each applied to the expert's tokens.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/grouped_linear/groups.h"

namespace lehr::ops {

/// Multiplies rows [ends[g-1], ends[g]) of `input` by weight[g] transposed, for every group g (with ends[-1] = 0).
///
/// input is (N, in) with the rows of a group together, weight (G, out, in) of the same floating dtype, ends (G) int32
/// on the same device, not decreasing, with ends[G-1] = N. Returns (N, out). A group may be empty: the gradient of its
/// weight is zero. `bias`, (G, out) if defined, is added to the rows of its group. The weight's gradient can be
/// deferred (ops/weight_gradients.h). Throws a usage error if shapes or dtypes do not match.
///
/// On CUDA in bfloat16 the grouped matmul is ATen's (at most 1023 groups), and `ends` stays on the device with compute
/// capability 9.0 and 10.x; on other GPUs ATen reads it. Other dtypes have no grouped matmul there: the host waits for
/// `ends` and calls one matmul per group, so train experts in bfloat16 (training.mixed_precision_param).
at::Tensor grouped_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias = {});

/// The same by the `matmuls` of any precision, for arguments that check_grouped_linear accepts.
at::Tensor grouped_linear_by(
    const c10::intrusive_ptr<GroupMatmuls>& matmuls,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias);

/// The definition: one ATen matmul per group.
at::Tensor grouped_linear_reference(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias = {});

}  // namespace lehr::ops
