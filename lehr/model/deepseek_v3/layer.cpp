#include "lehr/model/deepseek_v3/layer.h"

#include "lehr/model/moe_parameters.h"
#include "lehr/nn/residual_stream.h"

namespace lehr::model {

DeepseekV3LayerImpl::DeepseekV3LayerImpl(const DeepseekV3LayerParameters& params, int64_t layer_index) {
  if (!params.attention_no_op) {
    declare_module(
        "self_attn",
        self_attn,
        nn::MultiHeadLatentAttention(params.attention.parameters(params, params.attention_scale)));
  }
  if (!params.ffn_no_op && params.moe.has_experts(layer_index)) {
    declare_module("mlp", experts, nn::MoELayer(moe_parameters(params.moe, params)));
  } else if (!params.ffn_no_op) {
    const auto init = nn::Init::normal(params.initializer_range);
    declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (self_attn) {
    declare_module("input_layernorm", input_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
  if (experts || mlp) {
    declare_module(
        "post_attention_layernorm", post_attention_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
}

at::Tensor DeepseekV3LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (input_layernorm) {
    residual.add(self_attn(residual.normed(input_layernorm), position_embeddings, attention_mask, cache));
  }
  if (post_attention_layernorm) {
    const at::Tensor normed = residual.normed(post_attention_layernorm);
    residual.add(experts ? experts(normed) : mlp(normed));
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
