#include "lehr/model/qwen3_dense/layer.h"

namespace lehr::model {

Qwen3DenseLayerImpl::Qwen3DenseLayerImpl(const Qwen3DenseLayerParameters& params) {
  const auto init = nn::Init::normal(params.initializer_range);
  if (!params.attention_no_op) {
    self_attn = register_module(
        "self_attn",
        nn::GroupedQueryAttention(nn::GroupedQueryAttentionParameters{
            .hidden_size = params.hidden_size,
            .num_attention_heads = params.num_attention_heads,
            .num_key_value_heads = params.num_key_value_heads,
            .head_dim = params.head_dim,
            .qk_norm_eps = params.rms_norm_eps,
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

at::Tensor Qwen3DenseLayerImpl::forward(
    at::Tensor hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  if (self_attn) {
    hidden_states =
        hidden_states + self_attn(input_layernorm(hidden_states), position_embeddings, attention_mask, cache);
  }
  if (mlp) {
    hidden_states = hidden_states + mlp(post_attention_layernorm(hidden_states));
  }
  return hidden_states;
}

}  // namespace lehr::model
