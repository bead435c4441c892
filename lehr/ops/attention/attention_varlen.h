// Variable-length attention: tokens attend within their sequence, and the sequences are stored one after the other.
// Packed documents, padded rows and windows need no (T, T) mask.
//
// One autograd function serves several kernels: ATen's FlashAttention and memory-efficient attention on a GPU, and
// plain ATen sequence by sequence on the CPU.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention.h"

namespace lehr::ops {

/// The division of N tokens into sequences.
struct Sequences {
  /// (M + 1) int32 from 0 to N on the tokens' device; a repeated number is an empty sequence. All rows have the same
  /// number of sequences.
  at::Tensor cumulative_lengths;
  /// The length of a row, more than 1, which divides N. It bounds the length of a sequence; a tighter bound would have
  /// to be read from the device.
  int64_t row_length = 0;
};

/// Causal attention within sequences, with scale, window and softcap as in `options`; ignores sinks. q is (N, Hq, D), k
/// (N, Hkv, D), v (N, Hkv, Dv).
struct VariableLengthKernel {
  /// Returns the output (N, Hq, Dv) in q's dtype, and the log-sum-exp of each query's scores (Hq, N) in float32 or
  /// wider.
  using Forward = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const Sequences& sequences,
      const AttentionOptions& options);
  /// Returns the gradients of q, k and v for `dout`, that of the output. Weights are exp(score - log_sum), so with the
  /// output and LSE of a softmax that includes sinks, these are the gradients with sinks.
  using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor& dout,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& out,
      const at::Tensor& log_sum,
      const Sequences& sequences,
      const AttentionOptions& options);
  Forward* forward;
  Backward* backward;
};

namespace reference {
/// Plain ATen on the CPU, one sequence after the other, in any floating dtype; holds the scores of 128 queries at a
/// time.
extern const VariableLengthKernel kVariableLength;
}  // namespace reference

/// at::_flash_attention_forward and _backward, for calls that flash_takes accepts. Head sizes are padded with zeros to
/// one multiple of 8 for q, k and v.
extern const VariableLengthKernel kFlash;
/// True if FlashAttention supports the call: float16 or bfloat16, heads of at most 256 elements, no softcap.
/// FlashAttention also needs a GPU of compute capability 8.0 or more, and throws on others.
bool flash_takes(at::ScalarType type, int64_t size, int64_t value_size, const AttentionOptions& options);

/// at::_efficient_attention_forward and _backward, for calls that efficient_takes accepts. Keys and values are repeated
/// for each query head. Backward holds 16 times the queries of a row in float32, or those of 16 rows.
extern const VariableLengthKernel kEfficient;
/// True if memory-efficient attention supports the call: float32, float16 or bfloat16, no softcap.
bool efficient_takes(at::ScalarType type, const AttentionOptions& options);

/// Returns the kernel for calls like this, on meta one that only allocates; null if there is none.
const VariableLengthKernel* variable_length_kernel(
    const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options);

/// Computes ops::attention by `kernel`, in causal order, for as many queries as keys in rows that consist of
/// `sequences`. key_padding (B or 1, T) may be undefined. Outputs and gradients at hidden positions are zeros, whatever
/// the inputs hold there.
at::Tensor variable_length_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const at::Tensor& key_padding,
    const AttentionOptions& options,
    const VariableLengthKernel& kernel);

}  // namespace lehr::ops
