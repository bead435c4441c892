// Sizes that decoder layers have in every family.
#pragma once

#include <cstdint>

namespace lehr::model {

/// The beginning of a family's layer parameters, for families whose layers are not built from DenseLayerParameters.
/// Names are those of Hugging Face's config.json.
struct LayerSizes {
  int64_t hidden_size;              ///< Width of the residual stream.
  int64_t intermediate_size;        ///< Inner width of the feed-forward block of a layer without experts.
  int64_t num_attention_heads;      ///< Query heads.
  int64_t num_key_value_heads;      ///< Key and value heads; divides num_attention_heads.
  double rms_norm_eps;              ///< Epsilon of every RMSNorm.
  int64_t head_dim;                 ///< Width of a head; need not be hidden_size / num_attention_heads.
  double initializer_range = 0.02;  ///< Standard deviation of initial weights.
  bool attention_no_op = false;     ///< The layer has no attention or what replaces it, and no norm before it.
  bool ffn_no_op = false;           ///< The layer has no feed-forward block or experts, and no norm before them.
};

}  // namespace lehr::model
