// Sizes of the decoder layer that most families have: grouped-query attention and a SwiGLU.
#pragma once

#include "lehr/model/decoder_config.h"
#include "lehr/nn/attention.h"

namespace lehr::model {

/// One decoder layer. Names are those of Hugging Face's config.json. A family whose layers need other sizes has a
/// struct of its own, of which the backbone and the heads read hidden_size, head_dim, rms_norm_eps and
/// initializer_range.
struct DenseLayerParameters {
  int64_t hidden_size;              ///< Width of the residual stream.
  int64_t intermediate_size;        ///< Inner width of the SwiGLU.
  int64_t num_attention_heads;      ///< Query heads.
  int64_t num_key_value_heads;      ///< Key and value heads; divides num_attention_heads.
  double rms_norm_eps;              ///< Epsilon of every RMSNorm.
  int64_t head_dim;                 ///< Width of a head; need not be hidden_size / num_attention_heads.
  double initializer_range = 0.02;  ///< Standard deviation of initial weights.
  bool attention_no_op = false;     ///< The layer has no attention, and none of the attention's norms.
  bool ffn_no_op = false;           ///< The layer has no SwiGLU, and none of its norms.
};

/// Returns plain attention of these sizes; a layer adds its options, such as QK-norm.
template <class LayerParameters>
nn::GroupedQueryAttentionParameters attention_parameters(const LayerParameters& params) {
  return {
      .hidden_size = params.hidden_size,
      .num_attention_heads = params.num_attention_heads,
      .num_key_value_heads = params.num_key_value_heads,
      .head_dim = params.head_dim,
      .init = nn::Init::normal(params.initializer_range)};
}

/// Returns the sizes of a layer of this model.
inline DenseLayerParameters dense_layer_parameters(const DecoderConfig& config) {
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
