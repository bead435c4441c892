#include "lehr/model/qwen3_next/layer.h"

#include "lehr/model/layer_parameters.h"
#include "lehr/model/moe_parameters.h"
#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Qwen3NextLayerImpl::Qwen3NextLayerImpl(const Qwen3NextLayerParameters& params, int64_t layer_index) {
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps, nn::NormWeight::zero_centered); };
  if (!params.attention_no_op && params.linear.is_linear(layer_index)) {
    declare_module("linear_attn", linear_attn, nn::GatedDeltaNet(params.linear.parameters(params)));
  } else if (!params.attention_no_op) {
    auto attention = attention_parameters(params);
    attention.qk_norm_eps = params.rms_norm_eps;
    attention.qk_norm_weight = nn::NormWeight::zero_centered;
    attention.output_gate = true;
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
  }
  if (!params.ffn_no_op && params.moe && params.moe->has_experts(layer_index)) {
    auto moe = moe_parameters(*params.moe, params);
    if (moe.shared_expert) {
      moe.shared_expert->enable_gate = true;
    }
    declare_module("mlp", experts, nn::MoELayer(moe));
  } else if (!params.ffn_no_op) {
    const auto init = nn::Init::normal(params.initializer_range);
    declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (linear_attn || self_attn) {
    declare_module("input_layernorm", input_layernorm, norm());
  }
  if (experts || mlp) {
    declare_module("post_attention_layernorm", post_attention_layernorm, norm());
  }
}

at::Tensor Qwen3NextLayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (input_layernorm) {
    const at::Tensor normed = residual.normed(input_layernorm);
    residual.add(
        linear_attn ? linear_attn(normed, attention_mask, cache)
                    : self_attn(normed, position_embeddings, attention_mask, cache));
  }
  if (post_attention_layernorm) {
    const at::Tensor normed = residual.normed(post_attention_layernorm);
    residual.add(experts ? experts(normed) : mlp(normed));
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
