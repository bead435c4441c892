// One Qwen3 dense decoder layer.
#pragma once

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

using Qwen3DenseLayerParameters = DenseLayerParameters;

/// Attention with QK-norm, then SwiGLU, each with a pre-norm and a residual connection (Qwen3 technical report,
/// https://arxiv.org/abs/2505.09388).
class Qwen3DenseLayerImpl : public nn::Module {
 public:
  explicit Qwen3DenseLayerImpl(const Qwen3DenseLayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  // Members that a layer lacks are empty.
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::SwiGLU mlp{nullptr};
  nn::LinearSubblock linear_attn{nullptr};  // registered as "self_attn" in place of it
  nn::LinearSubblock linear_mlp{nullptr};   // registered as "mlp" in place of it
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
};
LEHR_MODULE(Qwen3DenseLayer);

}  // namespace lehr::model
