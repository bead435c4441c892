#include "lehr/model/qwen3_dense/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Qwen3DenseLayerImpl::Qwen3DenseLayerImpl(const Qwen3DenseLayerParameters& params) {
  const auto init = nn::Init::normal(params.initializer_range);
  if (!params.attention_no_op) {
    auto attention = attention_parameters(params);
    attention.qk_norm_eps = params.rms_norm_eps;
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
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

at::Tensor Qwen3DenseLayerImpl::forward(
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
