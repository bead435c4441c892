// The causal depth-wise convolution over tokens with SiLU that linear attention applies to its projected queries, keys
// and values.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns silu(z) with z[t, d] = bias[d] + sum over j of weight[d, 0, W - 1 - j] x[t - j, d], j from 0 to W - 1.
/// Tokens before the sequence of token t count as zero, so that documents of a packed batch do not see each other.
/// Those before the first sequence of a row are `before` (B, W - 1, ...), of the type of x; zero if undefined.
///
/// x is (B, T, ...), whose dimensions after the second are D channels together; weight is (D, 1, W) of the same type,
/// as torch.nn.Conv1d stores it with groups = D, and bias (D) too, or undefined for zero; the result has the shape and
/// type of x. The sum is in float32 (float64 for float64). `cumulative_lengths` are those of the sequences of all rows
/// (cumulative_lengths_of), int32 on the same device; undefined if each row is one sequence. W is at most kMostTaps.
/// Throws a usage error for other shapes and types.
at::Tensor causal_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& cumulative_lengths = {},
    const at::Tensor& before = {},
    const at::Tensor& bias = {});

/// The largest width of a kernel.
inline constexpr int64_t kMostTaps = 16;

namespace reference {
at::Tensor causal_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& cumulative_lengths = {},
    const at::Tensor& before = {},
    const at::Tensor& bias = {});
}

}  // namespace lehr::ops
