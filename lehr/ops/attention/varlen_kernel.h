// The interface of kernels for variable-length attention.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention_options.h"

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
  /// Returns the gradients of q, k and v for `dout`, that of the output. Weights are exp(score - lse), so with the
  /// output and LSE of a softmax that includes sinks, these are the gradients with sinks.
  using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor& dout,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& out,
      const at::Tensor& lse,
      const Sequences& sequences,
      const AttentionOptions& options);
  Forward* forward;
  Backward* backward;
};

}  // namespace lehr::ops
