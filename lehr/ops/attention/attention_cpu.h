// Causal attention on the CPU, forward and backward separately.
#pragma once

#include <limits>
#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention_options.h"

namespace lehr::ops::cpu {

/// Returns whether attention_forward takes this call, if its documents and padding form sequences
/// (attention_sequences.h): causal order without `allowed` and `bias`, float32 or bfloat16, and kFewQueries queries or
/// more, since tiles would be mostly empty otherwise. All options are supported.
bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);
/// Returns, for each position of a row, the position at which its sequence begins: (batch, keys) int32, from the
/// cumulative lengths of all rows. Undefined if these are undefined.
at::Tensor first_keys_of(const at::Tensor& cumulative_lengths, int64_t batch, int64_t keys);
/// Arguments of a call of attention that all queries share.
struct AttentionPlan {
  at::Tensor first_keys;  ///< Of first_keys_of; undefined where each row is one sequence.
  at::Tensor sinks;       ///< (Hq) float32; undefined for none.
  double scale = 1;
  double softcap = 0;  ///< 0 for none.
  int64_t window = std::numeric_limits<int64_t>::max();
};
/// Returns the output and, if `keep`, the log-sum-exp of each query (B, Hq, T) for backward.
std::tuple<at::Tensor, at::Tensor> attention_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionPlan& plan, bool keep);
/// Returns the gradients of q, k and v for `dout`, the gradient of the output `out`. `lse` is the log-sum-exp that
/// forward returned.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const AttentionPlan& plan);

}  // namespace lehr::ops::cpu
