// Memory and FLOPs of attention kernels, without their computation.
#pragma once

#include <optional>

#include "lehr/base/torch.h"
#include "lehr/ops/attention/varlen_kernel.h"

namespace lehr::ops {

/// Below this many queries per row, most of a 64-row tile of the fused kernel would be padding.
inline constexpr int64_t kFewQueries = 16;

/// Stands for at::scaled_dot_product_attention on meta, which there would hold all scores: returns (B, Hq, T, Dv) for q
/// (B, T, Hq, D), k (B, S, Hkv, D), v (B, S, Hkv, Dv) and `bias`, which broadcasts to (B, Hq, T, S). Saves inputs,
/// output and one number per query and head.
at::Tensor flash_attention_on_meta(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias, bool causal);

/// Variable-length attention that allocates the same memory as FlashAttention for heads of one size, without its
/// kernels.
extern const VariableLengthKernel kFlashOnMeta;

/// Returns the FLOPs of scores and weighted values in causal order, for q (B, T, Hq, D), k (B, S, Hkv, D) and v (B, S,
/// Hkv, Dv): two per pair of query and key and per element. Counts a row as one document.
double causal_attention_flops(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::optional<int64_t> window);

/// Reports `times` the FLOPs of forward for q (N, Hq, D) and v (N, Hkv, Dv): two per element and pair of a query and a
/// key that it sees in its sequence. Does nothing without a meter or a profile; with one, the host reads the lengths of
/// a tensor on a device once. On meta, where they are unknown, each row counts as one sequence.
void report_sequences(
    const at::Tensor& q, const at::Tensor& v, const Sequences& sequences, std::optional<int64_t> window, double times);

}  // namespace lehr::ops
