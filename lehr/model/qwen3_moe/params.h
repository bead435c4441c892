// Shapes of a Qwen3 MoE model.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"

namespace lehr::model {

/// One Qwen3 MoE decoder layer. Names are those of Hugging Face's config.json where it has one.
struct Qwen3MoELayerParameters {
  int64_t hidden_size;                        ///< Width of the residual stream.
  int64_t intermediate_size;                  ///< Inner width of an expert (moe_intermediate_size).
  int64_t num_experts;                        ///< Experts of a layer.
  int64_t experts_top_k;                      ///< Experts a token goes to (num_experts_per_tok).
  int64_t num_attention_heads;                ///< Query heads.
  int64_t num_key_value_heads;                ///< Key and value heads; divides num_attention_heads.
  double rms_norm_eps;                        ///< Epsilon of every RMSNorm.
  int64_t head_dim;                           ///< Width of a head; need not be hidden_size / num_attention_heads.
  bool norm_topk_prob = true;                 ///< The probabilities of a token's experts are scaled to sum to one.
  int64_t decoder_sparse_step = 1;            ///< Every n-th layer has experts.
  std::vector<int64_t> mlp_only_layers = {};  ///< Layers without experts.
  bool enable_expert_bias = false;            ///< Experts are chosen by probability + bias; see nn::TopKRouter.
  int64_t dense_intermediate_size = 0;        ///< Inner width of the SwiGLU of layers without experts.
  double initializer_range = 0.02;            ///< Standard deviation of initial weights.
  bool attention_no_op = false;               ///< The layer has no attention, and no norm before it.
  bool ffn_no_op = false;                     ///< The layer has neither experts nor SwiGLU, and no norm before them.

  /// Whether the layer of this number (from 0) has experts.
  bool has_experts(int64_t layer) const;
};

using Qwen3MoEParameters = DecoderParameters<Qwen3MoELayerParameters>;
using Qwen3MoEForCausalLMParameters = ForCausalLMParameters<Qwen3MoEParameters>;
using Qwen3MoEForClassificationParameters = ForClassificationParameters<Qwen3MoEParameters>;
using Qwen3MoEForEmbeddingParameters = ForEmbeddingParameters<Qwen3MoEParameters>;

}  // namespace lehr::model
