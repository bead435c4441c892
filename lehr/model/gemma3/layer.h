// One Gemma 3 decoder layer.
#pragma once

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/linear_subblock.h"

namespace lehr::model {

using Gemma3LayerParameters = DenseLayerParameters;

/// Attention with QK-norm, then GeGLU, each with a norm before and after it: x + norm(block(norm(x))). Weights of norms
/// are zero-centered (Gemma 3 technical report, https://arxiv.org/abs/2503.19786).
class Gemma3LayerImpl : public nn::Module {
 public:
  explicit Gemma3LayerImpl(const Gemma3LayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  // Members that a layer lacks are empty.
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::GeGLU mlp{nullptr};
  nn::LinearSubblock linear_attn{nullptr};  // registered as "self_attn" in place of it
  nn::LinearSubblock linear_mlp{nullptr};   // registered as "mlp" in place of it
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
  nn::RMSNorm pre_feedforward_layernorm{nullptr};
  nn::RMSNorm post_feedforward_layernorm{nullptr};
};
LEHR_MODULE(Gemma3Layer);

}  // namespace lehr::model
