// The mask and the options of attention, which all of its implementations take.
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

/// Returns the mask of the same queries without the first `count` of `keys` keys, and without lengths of sequences.
AttentionMask without_first_keys(const AttentionMask& mask, int64_t count, int64_t keys);

/// Throws a usage error that begins with `subject` if an option is invalid for every call.
void check_attention_options(const char* subject, const AttentionOptions& options);

/// Returns 1 / sqrt(D), the scale of attention where none is given.
double default_scale(int64_t head_size);

}  // namespace lehr::ops
