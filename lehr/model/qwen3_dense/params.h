// Shapes of a Qwen3 dense model.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"

namespace lehr::model {

/// One Qwen3 dense decoder layer. Names are those of Hugging Face's config.json.
struct Qwen3DenseLayerParameters {
  int64_t hidden_size;              ///< Width of the residual stream.
  int64_t intermediate_size;        ///< Inner width of the SwiGLU.
  int64_t num_attention_heads;      ///< Query heads.
  int64_t num_key_value_heads;      ///< Key and value heads; divides num_attention_heads.
  double rms_norm_eps;              ///< Epsilon of every RMSNorm.
  int64_t head_dim;                 ///< Width of a head; need not be hidden_size / num_attention_heads.
  double initializer_range = 0.02;  ///< Standard deviation of initial weights.
  bool attention_no_op = false;     ///< The layer has no attention, and no norm before it.
  bool ffn_no_op = false;           ///< The layer has no SwiGLU, and no norm before it.
};

using Qwen3DenseParameters = DecoderParameters<Qwen3DenseLayerParameters>;
using Qwen3DenseForCausalLMParameters = ForCausalLMParameters<Qwen3DenseParameters>;
using Qwen3DenseForClassificationParameters = ForClassificationParameters<Qwen3DenseParameters>;
using Qwen3DenseForEmbeddingParameters = ForEmbeddingParameters<Qwen3DenseParameters>;

}  // namespace lehr::model
