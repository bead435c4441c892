#include "lehr/model/nemotron_h/layer.h"

#include "lehr/base/value_of.h"
#include "lehr/model/layer_parameters.h"
#include "lehr/model/moe_parameters.h"
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
      declare_module("mamba", mamba, nn::Mamba2(params.mamba.parameters(params)));
      break;
    case Mixer::attention: {
      auto attention = attention_parameters(params);
      attention.rotary_dim = 0;
      declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
      break;
    }
    case Mixer::feed_forward:
      declare_module("mlp", mlp, nn::ReluSquaredMlp(params.hidden_size, params.intermediate_size, init));
      break;
    case Mixer::experts: {
      auto moe = moe_parameters(value_of(params.moe, "experts"), params);
      moe.expert_options.relu_squared = true;
      declare_module("mlp", experts, nn::MoELayer(moe));
      break;
    }
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
