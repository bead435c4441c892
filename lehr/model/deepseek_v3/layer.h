// One DeepSeek-V3 decoder layer.
#pragma once

#include "lehr/model/latent_attention_config.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

/// Sizes of one DeepSeek-V3 decoder layer.
struct DeepseekV3LayerParameters {
  int64_t hidden_size;
  int64_t num_attention_heads;
  double rms_norm_eps;  ///< Epsilon of the norms before the sub-blocks; those of the latents have 1e-6.
  int64_t head_dim;     ///< Rotated elements of a head (qk_rope_head_dim).
  double initializer_range;
  LatentAttentionConfig attention;
  std::optional<double> attention_scale;  ///< Factor on the scores; 1 / sqrt(qk_head_dim) if unset.
  int64_t intermediate_size;              ///< Inner width of the SwiGLU of layers without experts.
  int64_t dense_layers;                   ///< The first layers, which have no experts (first_k_dense_replace).
  nn::MoEParameters experts;              ///< Of the other layers; with num_experts 0, none has them.
  bool attention_no_op = false;           ///< The layer has no attention, and no norm before it.
  bool ffn_no_op = false;                 ///< The layer has neither experts nor SwiGLU, and no norm before them.
};

/// Multi-head latent attention, then an MoE layer with a shared expert (or one SwiGLU, in the first layers), each with
/// a pre-norm and a residual connection (DeepSeek-V3 technical report, https://arxiv.org/abs/2412.19437).
class DeepseekV3LayerImpl : public nn::Module {
 public:
  explicit DeepseekV3LayerImpl(const DeepseekV3LayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  // Members that a layer lacks are empty.
  nn::MultiHeadLatentAttention self_attn{nullptr};
  nn::MoELayer experts{nullptr};  // registered as "mlp" in a layer with experts
  nn::SwiGLU mlp{nullptr};        // registered as "mlp" in a layer without experts
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
};
LEHR_MODULE(DeepseekV3Layer);

}  // namespace lehr::model
