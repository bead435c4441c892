#include "lehr/model/qwen3_moe/layer.h"

#include <algorithm>

namespace lehr::model {

bool Qwen3MoELayerParameters::has_experts(int64_t layer) const {
  const bool excepted = std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) != mlp_only_layers.end();
  return !excepted && num_experts > 0 && (layer + 1) % decoder_sparse_step == 0;
}

Qwen3MoELayerImpl::Qwen3MoELayerImpl(const Qwen3MoELayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
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
  if (params.has_experts(layer_index)) {
    experts = register_module(
        "mlp",
        nn::MoELayer(nn::MoEParameters{
            .hidden_size = params.hidden_size,
            .intermediate_size = params.intermediate_size,
            .num_experts = params.num_experts,
            .top_k = params.experts_top_k,
            .renormalize_probabilities = params.norm_topk_prob,
            .init = init,
        }));
  } else {
    mlp = register_module("mlp", nn::SwiGLU(params.hidden_size, params.dense_intermediate_size, init));
  }
  input_layernorm = register_module("input_layernorm", nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  post_attention_layernorm =
      register_module("post_attention_layernorm", nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
}

at::Tensor Qwen3MoELayerImpl::forward(
    at::Tensor hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  hidden_states = hidden_states + self_attn(input_layernorm(hidden_states), position_embeddings, attention_mask, cache);
  const at::Tensor normed = post_attention_layernorm(hidden_states);
  return hidden_states + (experts ? experts(normed) : mlp(normed));
}

void Qwen3MoELayerImpl::reset_moe_stats() {
  if (experts) {
    experts->reset_moe_stats();
  }
}

}  // namespace lehr::model
