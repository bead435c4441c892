// Scaled dot-product attention with grouped key/value heads, sliding windows, sinks and logit softcapping.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention_options.h"

namespace lehr::ops {

/// Returns softmax(scale q k^T + mask) v for each head; query head h uses key/value head h / (Hq / Hkv).
///
/// q is (B, T, Hq, D), k (B, S, Hkv, D), v (B, S, Hkv, Dv), of one floating dtype; the result is (B, T, Hq, Dv). Fully
/// masked queries get zeros. Throws a usage error if shapes or dtypes do not match, or an option is out of range.
///
/// Causal calls in float32 and bfloat16 on the CPU with 16 queries or more run as fused tiles that hold no more than 64
/// x 64 scores, with all options. Other causal calls with as many queries as keys run sequence by sequence
/// (attention_varlen.h): on a GPU in ATen's flash or memory-efficient kernels, without softcap, and with documents or
/// padding only if the mask has sequence_ends. All other calls run in ATen: in scaled_dot_product_attention, or with
/// sinks or softcap as separate matmuls that hold all scores of the call, (B, Hq, T, S) in float32 or wider.
at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask = {},
    const AttentionOptions& options = {});

namespace reference {
/// Calls at::scaled_dot_product_attention, with a mask tensor only if causal order alone is not enough. With sinks or
/// softcap it runs as separate matmuls that hold all scores.
at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask = {},
    const AttentionOptions& options = {});
}  // namespace reference

}  // namespace lehr::ops
