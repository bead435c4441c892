// One Qwen3-Next decoder layer.
#pragma once

#include "lehr/model/layer_sizes.h"
#include "lehr/model/linear_attention_config.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gated_delta_net.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

/// Sizes of one Qwen3-Next decoder layer. head_dim is that of full attention.
struct Qwen3NextLayerParameters : LayerSizes {
  std::optional<int64_t> rotary_dim;  ///< Leading elements of a head of full attention that are rotated.
  LinearAttentionConfig linear;       ///< Gated DeltaNet, and the layers that have it.
  std::optional<MoEConfig> moe;       ///< The experts, and the layers that have them.
};

/// Gated DeltaNet, or full attention with QK-norm and output gates, then an MoE layer with a gated shared expert (or
/// one SwiGLU), each with a pre-norm and a residual connection. Weights of these norms are zero-centered
/// (https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct).
class Qwen3NextLayerImpl : public nn::Module {
 public:
  explicit Qwen3NextLayerImpl(const Qwen3NextLayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  // Members that a layer lacks are empty.
  nn::GatedDeltaNet linear_attn{nullptr};        // in a layer with linear attention
  nn::GroupedQueryAttention self_attn{nullptr};  // in the others
  nn::MoELayer experts{nullptr};                 // registered as "mlp" in a layer with experts
  nn::SwiGLU mlp{nullptr};                       // registered as "mlp" in a layer without experts
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
};
LEHR_MODULE(Qwen3NextLayer);

}  // namespace lehr::model
