// Sizes of the decoder layer that most families have: grouped-query attention and a SwiGLU.
#pragma once

#include "lehr/model/decoder_config.h"
#include "lehr/nn/attention.h"

namespace lehr::model {

/// Sizes of one decoder layer. Names are those of Hugging Face's config.json. A family whose layers need other sizes
/// has a struct of its own, of which the backbone and the heads read hidden_size, head_dim, rms_norm_eps and
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
  bool attention_linear = false;    ///< The layer has an nn::LinearSubblock in place of the attention.
  bool ffn_linear = false;          ///< The layer has an nn::LinearSubblock in place of the SwiGLU.
  // Passed to the attention of a layer by attention_parameters.
  bool qkv_bias = false;                       ///< Biases of the query, key and value projections,
  bool output_bias = false;                    ///< and of the output projection.
  std::optional<double> attention_scale = {};  ///< Factor on the scores; 1 / sqrt(head_dim) if unset.
  LayerPattern pattern = {};                   ///< Windows, and layers without rotary positions.
};

/// Returns the attention of layer `layer` with these sizes and options; a layer adds its own, such as QK-norm.
template <class LayerParameters>
nn::GroupedQueryAttentionParameters attention_parameters(const LayerParameters& params, int64_t layer = 0) {
  nn::GroupedQueryAttentionParameters attention{
      .hidden_size = params.hidden_size,
      .num_attention_heads = params.num_attention_heads,
      .num_key_value_heads = params.num_key_value_heads,
      .head_dim = params.head_dim,
      .init = nn::Init::normal(params.initializer_range)};
  if constexpr (requires { params.pattern; }) {
    attention.attention_bias = params.qkv_bias;
    attention.output_bias = params.output_bias;
    attention.scale = params.attention_scale;
    attention.sliding_window = params.pattern.window(layer);
    if (!params.pattern.rotates(layer)) {
      attention.rotary_dim = 0;
    }
  }
  if constexpr (requires { params.sinks; }) {
    attention.sinks = params.sinks;
  }
  if constexpr (requires { params.rotary_dim; }) {
    if (!attention.rotary_dim) {
      attention.rotary_dim = params.rotary_dim;
    }
  }
  return attention;
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
      .initializer_range = config.initializer_range,
      .qkv_bias = config.qkv_bias,
      .output_bias = config.output_bias,
      .attention_scale = config.attention_scale,
      .pattern = config.pattern};
}

}  // namespace lehr::model
