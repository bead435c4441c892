// Scaled dot-product attention with grouped key/value heads, and what models add to it: windows, sinks, capped scores.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Which keys a query may see. Conditions add up; the empty mask is plain causal attention.
///
/// B is the batch, T the number of queries, S >= T that of keys: query t stands at position S - T + t, so that with a
/// key/value cache the T queries are the last positions.
struct AttentionMask {
  bool causal = true;       ///< A query sees keys at its own position and before.
  at::Tensor document_ids;  ///< (B or 1, S) integers: a query sees only keys with the id of its own position.
  at::Tensor key_padding;   ///< (B or 1, S) bool: false hides a key.
  at::Tensor allowed;       ///< Bool, broadcasts to (B, Hq, T, S): false hides a key from a query.
  at::Tensor bias;          ///< Floating, broadcasts to (B, Hq, T, S): added to the final scores. Gets no gradient.
};

/// How scores become weights. A mask comes with a batch; these come with the architecture, and all of them combine.
struct AttentionOptions {
  /// Factor on the scores; 1 / sqrt(D) if not given.
  std::optional<double> scale = {};
  /// Scaled scores s become softcap tanh(s / softcap), before mask and bias (Gemma 2,
  /// https://arxiv.org/abs/2408.00118).
  std::optional<double> softcap = {};
  /// A query sees its own position and the window - 1 before it; needs causal order.
  std::optional<int64_t> window = {};
  /// (Hq) floating: each head's score of a key that is always seen and whose value is zero, so that a head may look at
  /// nothing (gpt-oss, https://arxiv.org/abs/2508.10925). Gets a gradient.
  at::Tensor sinks = {};
};

/// softmax(scale q k^T + mask) v for each head; query head h reads key/value head h / (Hq / Hkv).
///
/// q is (B, T, Hq, D), k (B, S, Hkv, D), v (B, S, Hkv, Dv), of one floating type; the result is (B, T, Hq, Dv). A query
/// that may see no key gets zeros. Throws a usage error if shapes or types do not match, or an option is out of range.
///
/// Causal calls in float32 and bfloat16 on the CPU with 16 queries or more, all options included, run as fused tiles
/// that hold no more than 64 x 64 scores. The others run in ATen: through scaled_dot_product_attention, or with sinks
/// or softcap through products that hold all scores of the call, (B, Hq, T, S) in float32 at least.
at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask = {},
    const AttentionOptions& options = {});

/// Throws a usage error that begins with `subject` for options that no call can have.
void check_attention_options(const char* subject, const AttentionOptions& options);

}  // namespace lehr::ops
