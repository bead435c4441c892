// One Llama 3 decoder layer.
#pragma once

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

using Llama3LayerParameters = DenseLayerParameters;

/// Attention, then SwiGLU, each with a pre-norm and a residual connection (The Llama 3 herd of models,
/// https://arxiv.org/abs/2407.21783). With biases of queries, keys and values it is Qwen2.5's layer, with a window
/// Mistral's, and without rotary positions one of SmolLM3's.
class Llama3LayerImpl : public nn::Module {
 public:
  explicit Llama3LayerImpl(const Llama3LayerParameters& params, int64_t layer_index = 0);

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
LEHR_MODULE(Llama3Layer);

}  // namespace lehr::model
