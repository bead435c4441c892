// The part that gated DeltaNet and Mamba-2 share: causal convolutions of three streams, and a state per head that every
// token reads and writes.
#pragma once

#include <array>
#include <functional>

#include "lehr/nn/kv_cache.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/causal_conv/causal_conv.h"
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"

namespace lehr::nn {

/// The tensors that a core of linear attention mixes over tokens.
struct LinearAttentionStreams {
  std::array<at::Tensor, 3> heads;    ///< Queries, keys and values (C, B and x of Mamba-2) before their convolutions,
                                      ///< (B, T, Hk or Hv, K or V).
  std::array<at::Tensor, 3> weights;  ///< Those of their convolutions, (heads' channels, 1, W).
  at::Tensor decay, beta;             ///< (B, T, Hv), as in ops::GatedDeltaInputs.
  ops::StateUpdate update = ops::StateUpdate::correct;
  std::array<at::Tensor, 3> biases = {};  ///< Of the convolutions, (heads' channels); undefined: none.
  at::Tensor skip = {};  ///< (Hv): factors of the values that are added to the output; undefined: none.
};

/// The core for a sequence that is split over ranks: returns (B, T, Hv, V).
using LinearAttentionCore =
    std::function<at::Tensor(const LinearAttentionStreams& streams, const ops::AttentionMask& mask)>;

/// Returns the cumulative lengths of documents and padding (ops::cumulative_lengths_of); undefined if each row is one
/// sequence. Throws a usage error for masks other than documents and padding.
at::Tensor linear_attention_sequences(const ops::AttentionMask& mask, int64_t rows, int64_t tokens);

/// Returns output + skip * values, the direct term D x of Mamba-2, or `output` if `skip` is undefined. output, and
/// values after their convolution, are (B, T, Hv, V), skip is (Hv).
at::Tensor add_skip(const at::Tensor& output, const at::Tensor& values, const at::Tensor& skip);

/// A module with such a core, which can be replaced.
class HasLinearAttentionCore {
 public:
  virtual ~HasLinearAttentionCore() = default;
  /// Replaces the operators that mix tokens; then caches are refused.
  void set_core(LinearAttentionCore core) { core_ = std::move(core); }
  bool has_own_core() const { return static_cast<bool>(core_); }

 protected:
  /// Mixes tokens by the core that was set, or by the convolutions and ops::gated_delta_rule: (B, T, Hv, V). With a
  /// cache, the tokens follow those in the cache.
  at::Tensor mix(const LinearAttentionStreams& streams, const ops::AttentionMask& mask, KeyValueCache* cache) const;

 private:
  LinearAttentionCore core_;
};

}  // namespace lehr::nn
