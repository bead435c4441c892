// Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434).
#pragma once

#include <optional>

#include "lehr/nn/attention.h"

namespace lehr::nn {

/// Sizes and options of multi-head latent attention (MLA), with the names of Hugging Face's config.json.
struct MultiHeadLatentAttentionParameters {
  int64_t hidden_size;
  int64_t num_attention_heads;
  std::optional<int64_t> q_lora_rank = {};  ///< Rank of the low-rank query projection; a single projection if unset.
  int64_t kv_lora_rank;                     ///< Width of the latent from which keys and values are projected.
  int64_t qk_nope_head_dim;                 ///< Elements of a query or key head without positions.
  int64_t qk_rope_head_dim;                 ///< Rotated elements that follow them; shared by all heads of a key.
  int64_t v_head_dim;
  bool attention_bias = false;  ///< Biases of q_a_proj, kv_a_proj_with_mqa and o_proj.
  double norm_eps = 1e-6;       ///< Epsilon of the norms of the latents.
  /// Factor on the scores; 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim) if unset. See also yarn_mscale.
  std::optional<double> scale = {};
  RotaryStyle rotary_style = RotaryStyle::interleaved;
  Init init = Init::normal(0.02);
};

/// Causal self-attention whose keys and values are projections of one small latent per token, with the names of Hugging
/// Face's DeepSeek modules. Only the latent and the rotated part of the key are cached: kv_lora_rank + qk_rope_head_dim
/// numbers per token, independent of the number of heads. The number of local heads follows from the projections'
/// outputs, which may hold only some of the heads.
class MultiHeadLatentAttentionImpl : public Module, public HasAttentionCore {
 public:
  /// Throws a usage error that names the parameter if one is out of range.
  explicit MultiHeadLatentAttentionImpl(const MultiHeadLatentAttentionParameters& params);

  /// Maps (B, T, C) to (B, T, C); the angles have qk_rope_head_dim elements. With a cache, the T tokens follow those in
  /// the cache, and attention is computed on the latents: kv_b_proj is applied to queries and results, not to the
  /// cache.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const PositionEmbeddings& position_embeddings,
      const AttentionMask& mask = {},
      KeyValueCache* cache = nullptr);

  /// Number of heads of the whole module, even if its projections hold only some of them.
  int64_t num_attention_heads() const { return params_.num_attention_heads; }

  Linear q_proj{nullptr};  // if q_lora_rank is unset
  Linear q_a_proj{nullptr};
  RMSNorm q_a_layernorm{nullptr};
  Linear q_b_proj{nullptr};
  Linear kv_a_proj_with_mqa{nullptr};
  RMSNorm kv_a_layernorm{nullptr};
  Linear kv_b_proj{nullptr};
  Linear o_proj{nullptr};

 private:
  // q_nope (B, T, n, nope), q_rope (B, T, n, rope), latent (B, S, 1, rank), k_rope (B, S, 1, rope) -> (B, T, n, v)
  at::Tensor attend_to_heads(
      const at::Tensor& q_nope,
      const at::Tensor& q_rope,
      const at::Tensor& latent,
      const at::Tensor& k_rope,
      const AttentionMask& mask);
  at::Tensor attend_to_latents(
      const at::Tensor& q_nope,
      const at::Tensor& q_rope,
      const at::Tensor& latent,
      const at::Tensor& k_rope,
      const AttentionMask& mask);

  MultiHeadLatentAttentionParameters params_;
  ops::AttentionOptions options_;
};
LEHR_MODULE(MultiHeadLatentAttention);

}  // namespace lehr::nn
