// One DeepSeek-V3 decoder layer.
#pragma once

#include "lehr/model/latent_attention_config.h"
#include "lehr/model/layer_sizes.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

/// Sizes of one DeepSeek-V3 decoder layer. head_dim is the number of rotated elements of a head (qk_rope_head_dim), and
/// rms_norm_eps that of the norms before the sub-blocks; those of the latents have 1e-6.
struct DeepseekV3LayerParameters : LayerSizes {
  LatentAttentionConfig attention;
  std::optional<double> attention_scale;  ///< Factor on the scores; 1 / sqrt(qk_head_dim) if unset.
  MoEConfig moe;                          ///< The experts, and the layers that have them: all but the first ones.
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
