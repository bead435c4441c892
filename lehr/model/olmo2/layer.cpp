#include "lehr/model/olmo2/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Olmo2LayerImpl::Olmo2LayerImpl(const Olmo2LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps); };
  if (!params.attention_no_op) {
    auto attention = attention_parameters(params, layer_index);
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

at::Tensor Olmo2LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
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

}  // namespace lehr::model
