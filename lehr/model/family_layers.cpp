#include "lehr/model/family_layers.h"

namespace lehr::model {

LayerSizes layer_sizes(const DecoderConfig& config) {
  return {
      .hidden_size = config.hidden_size,
      .intermediate_size = config.intermediate_size,
      .num_attention_heads = config.num_attention_heads,
      .num_key_value_heads = config.num_key_value_heads,
      .rms_norm_eps = config.rms_norm_eps,
      .head_dim = config.head_dim,
      .initializer_range = config.initializer_range};
}

}  // namespace lehr::model
