// Scaled dot-product attention with grouped key/value heads, sliding windows, sinks and logit softcapping.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The mask of attention: a key is visible to a query if all conditions hold. The empty mask is plain causal attention.
///
/// B is the batch size, T the number of queries and S >= T the number of keys. Query t is at position S - T + t, so
/// with a key/value cache the T queries are the last positions.
struct AttentionMask {
  bool causal = true;       ///< A query sees keys at its own position and before.
  at::Tensor document_ids;  ///< (B or 1, S) integers: a query sees only keys with the id of its own position.
  at::Tensor key_padding;   ///< (B or 1, S) bool: false hides a key, and the query at its position gets zeros.
  at::Tensor allowed;       ///< Bool, broadcasts to (B, Hq, T, S): false hides a key from a query.
  at::Tensor bias;          ///< Floating, broadcasts to (B, Hq, T, S): added to the final scores. Gets no gradient.

  /// (B or 1, M) int32: the ends of the sequences of each row, ascending, the last one S; a repeated end is an empty
  /// sequence. The creator of the batch derives it on the host from document_ids and key_padding: each sequence holds
  /// tokens of one document, all visible or all hidden, and no document has visible tokens in two sequences. On a GPU
  /// it is needed to avoid a mask of T x S numbers, because the host does not read ids back from there. See
  /// sequence_ends() in attention_sequences.h. Not checked.
  at::Tensor sequence_ends = {};
  /// (N + 1) int32: the cumulative lengths of these sequences over all rows. Models call with_cumulative_lengths() to
  /// compute them once for all their layers.
  at::Tensor cumulative_lengths = {};
};

/// Options of the architecture for the computation of weights from scores. All of them can be combined.
struct AttentionOptions {
  /// Factor on the scores; 1 / sqrt(D) if not given.
  std::optional<double> scale = {};
  /// Scaled scores s become softcap tanh(s / softcap), before mask and bias (Gemma 2,
  /// https://arxiv.org/abs/2408.00118).
  std::optional<double> softcap = {};
  /// A query sees its own position and the window - 1 before it; needs causal order.
  std::optional<int64_t> window = {};
  /// (Hq) floating: attention sinks. Each is a head's score of an additional key that is always visible and has value
  /// zero, so a head can put its weight on no key (gpt-oss, https://arxiv.org/abs/2508.10925). Gets a gradient.
  at::Tensor sinks = {};
};

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

/// Throws a usage error that begins with `subject` if an option is invalid for every call.
void check_attention_options(const char* subject, const AttentionOptions& options);

namespace reference {
/// Returns 1 / sqrt(D), the default scale of attention.
double default_scale(int64_t head_size);

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
