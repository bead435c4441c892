#include "lehr/model/gemma3/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Gemma3LayerImpl::Gemma3LayerImpl(const Gemma3LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps, nn::NormWeight::zero_centered); };
  if (params.attention_linear) {
    declare_module("self_attn", linear_attn, nn::LinearSubblock("linear_attn", params.hidden_size, init));
  } else if (!params.attention_no_op) {
    auto attention = attention_parameters(params, layer_index);
    attention.qk_norm_eps = params.rms_norm_eps;
    attention.qk_norm_weight = nn::NormWeight::zero_centered;
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
  }
  if (self_attn || linear_attn) {
    declare_module("input_layernorm", input_layernorm, norm());
    declare_module("post_attention_layernorm", post_attention_layernorm, norm());
  }
  if (params.ffn_linear) {
    declare_module("mlp", linear_mlp, nn::LinearSubblock("linear_mlp", params.hidden_size, init));
  } else if (!params.ffn_no_op) {
    declare_module("mlp", mlp, nn::GeGLU(params.hidden_size, params.intermediate_size, nn::Gelu::tanh, init));
  }
  if (mlp || linear_mlp) {
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
  if (input_layernorm) {
    const at::Tensor normed = residual.normed(input_layernorm);
    residual.add_normed(
        linear_attn ? linear_attn(normed) : self_attn(normed, position_embeddings, attention_mask, cache),
        post_attention_layernorm);
  }
  if (pre_feedforward_layernorm) {
    const at::Tensor normed = residual.normed(pre_feedforward_layernorm);
    residual.add_normed(linear_mlp ? linear_mlp(normed) : mlp(normed), post_feedforward_layernorm);
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
