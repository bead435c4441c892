#include "lehr/model/llama3/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Llama3LayerImpl::Llama3LayerImpl(const Llama3LayerParameters& params) {
  const auto init = nn::Init::normal(params.initializer_range);
  if (!params.attention_no_op) {
    self_attn = register_module(
        "self_attn",
        nn::GroupedQueryAttention(nn::GroupedQueryAttentionParameters{
            .hidden_size = params.hidden_size,
            .num_attention_heads = params.num_attention_heads,
            .num_key_value_heads = params.num_key_value_heads,
            .head_dim = params.head_dim,
            .init = init,
        }));
  }
  if (!params.ffn_no_op) {
    mlp = register_module("mlp", nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (self_attn) {
    input_layernorm = register_module("input_layernorm", nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
  if (mlp) {
    post_attention_layernorm =
        register_module("post_attention_layernorm", nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
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
