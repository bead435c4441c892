#include "lehr/model/qwen3_next/layer.h"

#include "lehr/nn/residual_stream.h"

namespace lehr::model {

Qwen3NextLayerImpl::Qwen3NextLayerImpl(const Qwen3NextLayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto norm = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps, nn::NormWeight::zero_centered); };
  if (!params.attention_no_op && params.linear.is_linear(layer_index)) {
    declare_module(
        "linear_attn",
        linear_attn,
        nn::GatedDeltaNet(nn::GatedDeltaNetParameters{
            .hidden_size = params.hidden_size,
            .num_key_heads = params.linear.linear_num_key_heads,
            .num_value_heads = params.linear.linear_num_value_heads,
            .key_head_dim = params.linear.linear_key_head_dim,
            .value_head_dim = params.linear.linear_value_head_dim,
            .conv_kernel = params.linear.linear_conv_kernel_dim,
            .norm_eps = params.rms_norm_eps,
            .init = init}));
  } else if (!params.attention_no_op) {
    declare_module(
        "self_attn",
        self_attn,
        nn::GroupedQueryAttention(nn::GroupedQueryAttentionParameters{
            .hidden_size = params.hidden_size,
            .num_attention_heads = params.num_attention_heads,
            .num_key_value_heads = params.num_key_value_heads,
            .head_dim = params.head_dim,
            .qk_norm_eps = params.rms_norm_eps,
            .qk_norm_weight = nn::NormWeight::zero_centered,
            .init = init,
            .rotary_dim = params.rotary_dim,
            .output_gate = true}));
  }
  if (!params.ffn_no_op && params.moe && params.moe->has_experts(layer_index)) {
    declare_module(
        "mlp",
        experts,
        nn::MoELayer(nn::MoEParameters{
            .hidden_size = params.hidden_size,
            .intermediate_size = params.moe->moe_intermediate_size,
            .num_experts = params.moe->num_experts,
            .top_k = params.moe->num_experts_per_tok,
            .renormalize_probabilities = params.moe->norm_topk_prob,
            .enable_expert_bias = params.moe->expert_bias,
            .shared_expert =
                nn::SharedExpertParameters{.intermediate_size = params.moe->shared_expert_intermediate_size},
            .init = init}));
  } else if (!params.ffn_no_op) {
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
