// Grouped-query attention (Ainslie et al., https://arxiv.org/abs/2305.13245) with the variants that models use.
#pragma once

#include <functional>
#include <optional>

#include "lehr/nn/kv_cache.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/rms_norm.h"
#include "lehr/nn/rotary.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "lehr/ops/rotary/rotary.h"

namespace lehr::nn {

using ops::AttentionMask;
using ops::RotaryStyle;
using ops::with_cumulative_lengths;

/// The operator that mixes tokens in an attention module: ops::attention, or a variant for a sequence that is split
/// over ranks. Arguments and result are those of ops::attention.
using AttentionCore = std::function<at::Tensor(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const ops::AttentionOptions& options)>;

/// A module with a replaceable attention core.
class HasAttentionCore {
 public:
  virtual ~HasAttentionCore() = default;
  void set_attention_core(AttentionCore core) { attention_core_ = std::move(core); }
  bool has_own_attention_core() const { return static_cast<bool>(attention_core_); }

 protected:
  /// Calls the core that was set, or ops::attention.
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

/// The elements over which QK-norm computes one mean square.
enum class QKNormWidth {
  head,  ///< Each query and each key head by itself, with one weight of head_dim elements for all of them (Qwen3).
  full,  ///< All query heads of a token together, and all its key heads, with a weight per element (OLMo 2,
         ///< https://arxiv.org/abs/2501.00656).
};

/// Unset fields mean plain attention. All options can be combined, except where a comment excludes it.
struct GroupedQueryAttentionParameters {
  int64_t hidden_size;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  std::optional<double> qk_norm_eps = {};         ///< Epsilon of the RMSNorms on queries and keys (QK-norm), before the
                                                  ///< rotation; no QK-norm if unset.
  QKNormWidth qk_norm_width = QKNormWidth::head;  ///< Elements of one norm; full excludes output_gate, and requires
                                                  ///< qk_norm_eps.
  NormWeight qk_norm_weight = NormWeight::plain;  ///< Kind of the weights of these norms; requires qk_norm_eps.
  bool attention_bias = false;                    ///< Biases of q_proj, k_proj, v_proj and o_proj.
  std::optional<bool> output_bias = {};           ///< Bias of o_proj, if it differs from the others (Qwen2: false).
  Init init = Init::normal(0.02);
  RotaryStyle rotary_style = RotaryStyle::half;
  /// Number of leading elements of a head that are rotated, even; all if unset, 0 for a layer without positions.
  std::optional<int64_t> rotary_dim = {};
  std::optional<double> scale = {};            ///< Factor on the scores; 1 / sqrt(head_dim) if unset.
  std::optional<double> softcap = {};          ///< Logit softcapping: scores s become softcap tanh(s / softcap) (Gemma
                                               ///< 2).
  std::optional<int64_t> sliding_window = {};  ///< A token attends to itself and the sliding_window - 1 tokens before
                                               ///< it (Mistral).
  bool sinks = false;                          ///< Attention sinks: a learned logit per head in the softmax's sum
                                               ///< (gpt-oss).
  /// Multiplies the heads' outputs by sigmoid gates (Qiu et al., https://arxiv.org/abs/2505.06708). As in Qwen3-Next,
  /// q_proj outputs the query and then the gate of each head.
  bool output_gate = false;
  bool keys_as_values = false;            ///< No v_proj: a value is its key before QK-norm and rotation (Gemma 4).
  std::optional<double> v_norm_eps = {};  ///< Epsilon of an RMSNorm of each value head, which has no weight (Gemma 4);
                                          ///< none if unset.
  /// No k_proj, v_proj or k_norm: the module attends to keys and values of an earlier layer (Gemma 4; Brandon et al.,
  /// https://arxiv.org/abs/2405.12981).
  bool reads_keys_and_values = false;
};

/// The keys and values that a layer attends to, for later layers that read them.
struct KeysAndValues {
  at::Tensor keys;     ///< (B, S, Hkv, D), after norm and rotation; with a cache, of all positions that are kept.
  at::Tensor values;   ///< (B, S, Hkv, D)
  int64_t behind = 0;  ///< Positions before them that a window has left behind.
};

/// Causal self-attention with grouped key/value heads and rotary positions. The number of local heads follows from the
/// projections' outputs, which may hold only some of the heads.
class GroupedQueryAttentionImpl : public Module, public HasAttentionCore {
 public:
  /// Throws a usage error that names the parameter if one is out of range or two are inconsistent.
  explicit GroupedQueryAttentionImpl(const GroupedQueryAttentionParameters& params);

  /// Maps (B, T, C) to (B, T, C). With a cache, the T tokens follow those in the cache. The angles have rotary_dim
  /// elements, and are not read if that is 0. With reads_keys_and_values, `shared` holds the keys and values to attend
  /// to, and `cache` is not used; otherwise `shared`, if given, is set to those of this module.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const PositionEmbeddings& position_embeddings,
      const AttentionMask& mask = {},
      KeyValueCache* cache = nullptr,
      KeysAndValues* shared = nullptr);

  /// Number of heads of the whole module, even if its projections hold only some of them.
  int64_t num_attention_heads() const { return num_attention_heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t num_key_value_heads() const { return num_key_value_heads_; }
  QKNormWidth qk_norm_width() const { return qk_norm_width_; }

  Linear q_proj{nullptr};
  Linear k_proj{nullptr};  // empty with reads_keys_and_values, like v_proj and k_norm
  Linear v_proj{nullptr};  // empty with keys_as_values
  Linear o_proj{nullptr};
  RMSNorm q_norm{nullptr};  // empty without QK-norm
  RMSNorm k_norm{nullptr};
  at::Tensor sinks;  // (Hq), undefined without sinks

 private:
  // Projects hidden states to keys and values, applies with_positions() to them and to `query`, and appends them to the
  // cache, if there is one.
  KeysAndValues keys_and_values(
      const at::Tensor& hidden_states,
      const PositionEmbeddings& position_embeddings,
      KeyValueCache* cache,
      at::Tensor& query);
  // Applies QK-norm over heads, if there is one, and the rotation; to queries alone if `key` is undefined.
  std::tuple<at::Tensor, at::Tensor> with_positions(
      const at::Tensor& query, const at::Tensor& key, const PositionEmbeddings& position_embeddings);

  int64_t num_attention_heads_;
  int64_t num_key_value_heads_;
  int64_t head_dim_;
  int64_t rotary_dim_;
  RotaryStyle rotary_style_;
  QKNormWidth qk_norm_width_;
  bool output_gate_;
  std::optional<double> v_norm_eps_;
  ops::AttentionOptions options_;  // without the sinks, which are a parameter
};
LEHR_MODULE(GroupedQueryAttention);

}  // namespace lehr::nn
