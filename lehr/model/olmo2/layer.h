// One OLMo 2 decoder layer.
#pragma once

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

using Olmo2LayerParameters = DenseLayerParameters;

/// Attention, then SwiGLU, each with a norm after it: x + norm(block(x)). QK-norm is over the full width (2 OLMo 2
/// Furious, https://arxiv.org/abs/2501.00656). With windows it is OLMo 3's layer.
class Olmo2LayerImpl : public nn::Module {
 public:
  explicit Olmo2LayerImpl(const Olmo2LayerParameters& params, int64_t layer_index = 0);

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
  nn::RMSNorm post_attention_layernorm{nullptr};
  nn::RMSNorm post_feedforward_layernorm{nullptr};
};
LEHR_MODULE(Olmo2Layer);

}  // namespace lehr::model
