// Grouped-query attention (Ainslie et al., https://arxiv.org/abs/2305.13245), and what models vary about it.
#pragma once

#include <functional>
#include <optional>

#include "lehr/nn/kv_cache.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/rms_norm.h"
#include "lehr/nn/rotary.h"
#include "lehr/ops/attention.h"
#include "lehr/ops/rotary.h"

namespace lehr::nn {

using ops::AttentionMask;
using ops::RotaryStyle;

/// What mixes tokens inside an attention module: ops::attention, or a form of it for a sequence that several ranks hold
/// parts of. Arguments and result are those of ops::attention.
using AttentionCore = std::function<at::Tensor(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const ops::AttentionOptions& options)>;

/// A module whose core can be replaced.
class HasAttentionCore {
 public:
  virtual ~HasAttentionCore() = default;
  void set_attention_core(AttentionCore core) { attention_core_ = std::move(core); }
  bool has_own_attention_core() const { return static_cast<bool>(attention_core_); }

 protected:
  /// The core that was set, or ops::attention.
  at::Tensor attend(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const AttentionMask& mask,
      const ops::AttentionOptions& options) const {
    return attention_core_ ? attention_core_(q, k, v, mask, options) : ops::attention(q, k, v, mask, options);
  }

 private:
  AttentionCore attention_core_;
};

/// What is not named is plain; everything combines.
struct GroupedQueryAttentionParameters {
  int64_t hidden_size;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  std::optional<double> qk_norm_eps = {};  ///< RMSNorm on each query and key head with this epsilon; none without.
  NormWeight qk_norm_weight = NormWeight::plain;  ///< What those norms multiply with; needs qk_norm_eps.
  bool attention_bias = false;                    ///< On q_proj, k_proj, v_proj and o_proj.
  std::optional<bool> output_bias = {};           ///< On o_proj, where it is not as on the others (Qwen2: false).
  Init init = Init::normal(0.02);
  RotaryStyle rotary_style = RotaryStyle::half;
  /// The first elements of a head that are rotated, even; all if not given, 0 for a layer without positions.
  std::optional<int64_t> rotary_dim = {};
  std::optional<double> scale = {};            ///< Factor on the scores; 1 / sqrt(head_dim) if not given.
  std::optional<double> softcap = {};          ///< Scores s become softcap tanh(s / softcap) (Gemma 2).
  std::optional<int64_t> sliding_window = {};  ///< A token sees itself and the sliding_window - 1 before (Mistral).
  bool sinks = false;                          ///< A learned logit a head in the softmax's sum (gpt-oss).
  /// The heads' outputs are multiplied by the sigmoid of as many gates (Qiu et al., https://arxiv.org/abs/2505.06708).
  /// As in Qwen3-Next, q_proj gives each head its query and then its gate.
  bool output_gate = false;
};

/// Causal self-attention with grouped key/value heads and rotary positions. The number of heads follows from the
/// projections' outputs, which may be those of a part of the heads.
class GroupedQueryAttentionImpl : public Module, public HasAttentionCore {
 public:
  /// Throws a usage error that names the parameter if one is out of range or two do not fit.
  explicit GroupedQueryAttentionImpl(const GroupedQueryAttentionParameters& params);

  /// Maps (B, T, C) to (B, T, C). With a cache, the T tokens follow those in the cache. The angles are of rotary_dim
  /// elements, and not read if that is 0.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const PositionEmbeddings& position_embeddings,
      const AttentionMask& mask = {},
      KeyValueCache* cache = nullptr);

  /// Heads of the whole module, whatever part of them its projections give.
  int64_t num_attention_heads() const { return num_attention_heads_; }
  int64_t num_key_value_heads() const { return num_key_value_heads_; }

  Linear q_proj{nullptr};
  Linear k_proj{nullptr};
  Linear v_proj{nullptr};
  Linear o_proj{nullptr};
  RMSNorm q_norm{nullptr};  // empty without QK-norm
  RMSNorm k_norm{nullptr};
  at::Tensor sinks;  // (Hq), undefined without sinks

 private:
  // Queries and keys, normed where there is QK-norm, and rotated.
  std::tuple<at::Tensor, at::Tensor> with_positions(
      const at::Tensor& query, const at::Tensor& key, const PositionEmbeddings& position_embeddings);

  int64_t num_attention_heads_;
  int64_t num_key_value_heads_;
  int64_t head_dim_;
  int64_t rotary_dim_;
  RotaryStyle rotary_style_;
  bool output_gate_;
  ops::AttentionOptions options_;  // but for the sinks, which are a slot
};
LEHR_MODULE(GroupedQueryAttention);

}  // namespace lehr::nn
