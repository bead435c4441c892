// One OLMo 2 decoder layer.
#pragma once

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/residual_stream.h"
#include "lehr/nn/swiglu.h"

namespace olmo2 {

using namespace lehr;
using Olmo2LayerParameters = model::DenseLayerParameters;

/// Attention, then SwiGLU, each with a norm after it: x + norm(block(x)). QK-norm is over the full width (2 OLMo 2
/// Furious, https://arxiv.org/abs/2501.00656).
class Olmo2LayerImpl : public nn::Module {
 public:
  explicit Olmo2LayerImpl(const Olmo2LayerParameters& params) {
    const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps); };
    const auto init = nn::Init::normal(params.initializer_range);
    if (!params.attention_no_op) {
      auto attention = model::attention_parameters(params);
      attention.qk_norm_eps = params.rms_norm_eps;
      attention.qk_norm_width = nn::QKNormWidth::full;
      declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
      declare_module("post_attention_layernorm", post_attention_layernorm, norm());
    }
    if (!params.ffn_no_op) {
      declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
      declare_module("post_feedforward_layernorm", post_feedforward_layernorm, norm());
    }
  }

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr) {
    nn::ResidualStream residual(hidden_states);
    if (self_attn) {
      const at::Tensor attended = self_attn(residual.hidden_states(), position_embeddings, attention_mask, cache);
      residual.add_normed(attended, post_attention_layernorm);
    }
    if (mlp) {
      residual.add_normed(mlp(residual.hidden_states()), post_feedforward_layernorm);
    }
    return residual.hidden_states();
  }

  // Members of a no-op sub-block are empty.
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::SwiGLU mlp{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr}, post_feedforward_layernorm{nullptr};
};
LEHR_MODULE(Olmo2Layer);

}  // namespace olmo2
