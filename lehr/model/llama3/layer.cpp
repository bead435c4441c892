#include "lehr/model/llama3/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Llama3LayerImpl::Llama3LayerImpl(const Llama3LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  if (!params.attention_no_op) {
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention_parameters(params, layer_index)));
  }
  if (!params.ffn_no_op) {
    declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (self_attn) {
    declare_module("input_layernorm", input_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
  if (mlp) {
    declare_module(
        "post_attention_layernorm", post_attention_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
}

at::Tensor Llama3LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (self_attn) {
    residual.add(self_attn(residual.normed(input_layernorm), position_embeddings, attention_mask, cache));
  }
  if (mlp) {
    residual.add(mlp(residual.normed(post_attention_layernorm)));
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
