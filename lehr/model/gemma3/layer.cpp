#include "lehr/model/gemma3/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Gemma3LayerImpl::Gemma3LayerImpl(const Gemma3LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps, nn::NormWeight::zero_centered); };
  if (!params.attention_no_op) {
    auto attention = attention_parameters(params, layer_index);
    attention.qk_norm_eps = params.rms_norm_eps;
    attention.qk_norm_weight = nn::NormWeight::zero_centered;
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
    declare_module("input_layernorm", input_layernorm, norm());
    declare_module("post_attention_layernorm", post_attention_layernorm, norm());
  }
  if (!params.ffn_no_op) {
    declare_module("mlp", mlp, nn::GeGLU(params.hidden_size, params.intermediate_size, nn::Gelu::tanh, init));
    declare_module("pre_feedforward_layernorm", pre_feedforward_layernorm, norm());
    declare_module("post_feedforward_layernorm", post_feedforward_layernorm, norm());
  }
}

at::Tensor Gemma3LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (self_attn) {
    const at::Tensor normed = residual.normed(input_layernorm);
    residual.add_normed(self_attn(normed, position_embeddings, attention_mask, cache), post_attention_layernorm);
  }
  if (mlp) {
    residual.add_normed(mlp(residual.normed(pre_feedforward_layernorm)), post_feedforward_layernorm);
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
