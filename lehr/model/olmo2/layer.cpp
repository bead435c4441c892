#include "lehr/model/olmo2/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Olmo2LayerImpl::Olmo2LayerImpl(const Olmo2LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps); };
  if (params.attention_linear) {
    declare_module("self_attn", linear_attn, nn::LinearSubblock("linear_attn", params.hidden_size, init));
  } else if (!params.attention_no_op) {
    auto attention = attention_parameters(params, layer_index);
    attention.qk_norm_eps = params.rms_norm_eps;
    attention.qk_norm_width = nn::QKNormWidth::full;
    declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
  }
  if (self_attn || linear_attn) {
    declare_module("post_attention_layernorm", post_attention_layernorm, norm());
  }
  if (params.ffn_linear) {
    declare_module("mlp", linear_mlp, nn::LinearSubblock("linear_mlp", params.hidden_size, init));
  } else if (!params.ffn_no_op) {
    declare_module("mlp", mlp, nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
  }
  if (mlp || linear_mlp) {
    declare_module("post_feedforward_layernorm", post_feedforward_layernorm, norm());
  }
}

at::Tensor Olmo2LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (post_attention_layernorm) {
    const at::Tensor& x = residual.hidden_states();
    residual.add_normed(
        linear_attn ? linear_attn(x) : self_attn(x, position_embeddings, attention_mask, cache),
        post_attention_layernorm);
  }
  if (post_feedforward_layernorm) {
    const at::Tensor& x = residual.hidden_states();
    residual.add_normed(linear_mlp ? linear_mlp(x) : mlp(x), post_feedforward_layernorm);
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
