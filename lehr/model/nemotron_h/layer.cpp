#include "lehr/model/nemotron_h/layer.h"

#include "lehr/base/value_of.h"
#include "lehr/nn/residual_stream.h"

namespace lehr::model {

NemotronHLayerImpl::NemotronHLayerImpl(const NemotronHLayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const Mixer mixer = params.mamba.mixer(layer_index);
  const bool is_ffn = mixes_channels(mixer);
  if (is_ffn ? params.ffn_no_op : params.attention_no_op) {
    return;
  }
  switch (mixer) {
    case Mixer::mamba:
      declare_module(
          "mamba",
          mamba,
          nn::Mamba2(nn::Mamba2Parameters{
              .hidden_size = params.hidden_size,
              .num_heads = params.mamba.mamba_num_heads,
              .head_dim = params.mamba.mamba_head_dim,
              .num_groups = params.mamba.n_groups,
              .state_size = params.mamba.ssm_state_size,
              .conv_kernel = params.mamba.conv_kernel,
              .conv_bias = params.mamba.use_conv_bias,
              .min_time_step = params.mamba.time_step_min,
              .max_initial_step = params.mamba.time_step_max,
              .initial_step_floor = params.mamba.time_step_floor,
              .norm_eps = params.rms_norm_eps,
              .init = init}));
      break;
    case Mixer::attention:
      declare_module(
          "self_attn",
          self_attn,
          nn::GroupedQueryAttention(nn::GroupedQueryAttentionParameters{
              .hidden_size = params.hidden_size,
              .num_attention_heads = params.num_attention_heads,
              .num_key_value_heads = params.num_key_value_heads,
              .head_dim = params.head_dim,
              .init = init,
              .rotary_dim = 0}));
      break;
    case Mixer::feed_forward:
      declare_module("mlp", mlp, nn::ReluSquaredMlp(params.hidden_size, params.intermediate_size, init));
      break;
    case Mixer::experts:
      declare_module("mlp", experts, nn::MoELayer(value_of(params.experts, "experts")));
      break;
  }
  declare_module(
      is_ffn ? "ffn_norm" : "attention_norm",
      is_ffn ? ffn_norm : attention_norm,
      nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
}

at::Tensor NemotronHLayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache) {
  nn::ResidualStream residual(hidden_states);
  if (mamba) {
    residual.add(mamba(residual.normed(attention_norm), attention_mask, cache));
  } else if (self_attn) {
    residual.add(self_attn(residual.normed(attention_norm), position_embeddings, attention_mask, cache));
  } else if (mlp) {
    residual.add(mlp(residual.normed(ffn_norm)));
  } else if (experts) {
    residual.add(experts(residual.normed(ffn_norm)));
  }
  return residual.hidden_states();
}

}  // namespace lehr::model
