#include "lehr/model/qwen3_moe/layer.h"

#include "lehr/model/layer_parameters.h"
#include "lehr/model/moe_parameters.h"
#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Qwen3MoELayerImpl::Qwen3MoELayerImpl(const Qwen3MoELayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  if (params.attention_linear) {
    declare_module("self_attn", linear_attn, nn::LinearSubblock("linear_attn", params.hidden_size, init));
  } else if (!params.attention_no_op) {
    auto attention = attention_parameters(params, layer_index);
    if (params.qk_norm) {
      attention.qk_norm_eps = params.rms_norm_eps;
      attention.qk_norm_width = params.qk_norm_width;
    }
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
  }
  if (params.ffn_linear) {
    declare_module("mlp", linear_mlp, nn::LinearSubblock("linear_mlp", params.hidden_size, init));
  } else if (!params.ffn_no_op && params.moe.has_experts(layer_index)) {
    declare_module("mlp", experts, nn::MoELayer(moe_parameters(params.moe, params)));
  } else if (!params.ffn_no_op) {
    declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (self_attn || linear_attn) {
    declare_module("input_layernorm", input_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
  if (experts || mlp || linear_mlp) {
    declare_module(
        "post_attention_layernorm", post_attention_layernorm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }
}

at::Tensor Qwen3MoELayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (input_layernorm) {
    const at::Tensor normed = residual.normed(input_layernorm);
    residual.add(linear_attn ? linear_attn(normed) : self_attn(normed, position_embeddings, attention_mask, cache));
  }
  if (post_attention_layernorm) {
    const at::Tensor normed = residual.normed(post_attention_layernorm);
    residual.add(linear_mlp ? linear_mlp(normed) : experts ? experts(normed) : mlp(normed));
  }
  return residual.hidden_states();
}

void Qwen3MoELayerImpl::reset_moe_stats() {
  if (experts) {
    experts->reset_moe_stats();
  }
}

}  // namespace lehr::model
