// Scaled dot-product attention with grouped key/value heads.
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
  at::Tensor bias;          ///< Floating, broadcasts to (B, Hq, T, S): added to the scaled scores. Gets no gradient.
  std::optional<double> scale;  ///< Factor on the scores; 1 / sqrt(D) if not given.
};

/// softmax(scale q k^T + mask) v for each head; query head h reads key/value head h / (Hq / Hkv).
///
/// q is (B, T, Hq, D), k and v (B, S, Hkv, D), of one floating type; the result is (B, T, Hq, D). A query that may see
/// no key gets zeros. Throws a usage error if shapes or types do not match.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask = {});

}  // namespace lehr::ops
