// One decoder layer of grouped-query attention and experts: Qwen3 MoE, and families with other options.
#pragma once

#include "lehr/model/layer_pattern.h"
#include "lehr/model/layer_sizes.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

/// Sizes of one Qwen3 MoE decoder layer.
struct Qwen3MoELayerParameters : LayerSizes {
  MoEConfig moe = {};             ///< The experts, and the layers that have them.
  bool attention_linear = false;  ///< The layer has an nn::LinearSubblock in place of the attention.
  bool ffn_linear = false;        ///< The layer has an nn::LinearSubblock in place of experts or SwiGLU.
  bool qk_norm = true;            ///< RMSNorm of queries and keys,
  nn::QKNormWidth qk_norm_width = nn::QKNormWidth::head;  ///< of each head, or of all heads together.
  // Passed to the attention of a layer by attention_parameters.
  bool qkv_bias = false;                       ///< Biases of the query, key and value projections,
  bool output_bias = false;                    ///< and of the output projection.
  std::optional<double> attention_scale = {};  ///< Factor on the scores; 1 / sqrt(head_dim) if unset.
  LayerPattern pattern = {};                   ///< Windows, and layers without rotary positions.
  std::optional<int64_t> rotary_dim = {};      ///< Leading elements of a head that are rotated; all if unset.
  bool sinks = false;                          ///< Attention sinks: a learned logit per head.
};

/// Attention with QK-norm, then an MoE layer (or one SwiGLU, in the layers that the parameters name), each with a
/// pre-norm and a residual connection (Qwen3 technical report, https://arxiv.org/abs/2505.09388).
class Qwen3MoELayerImpl : public nn::Module {
 public:
  explicit Qwen3MoELayerImpl(const Qwen3MoELayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  /// Tokens per expert since the last reset, (E) int64; undefined in a layer without experts.
  at::Tensor moe_tokens_per_expert() const { return experts ? experts->moe_tokens_per_expert() : at::Tensor(); }
  void reset_moe_stats();

  // Members that a layer lacks are empty.
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::MoELayer experts{nullptr};            // registered as "mlp" in a layer with experts
  nn::SwiGLU mlp{nullptr};                  // registered as "mlp" in a layer without experts
  nn::LinearSubblock linear_attn{nullptr};  // registered as "self_attn" in place of it
  nn::LinearSubblock linear_mlp{nullptr};   // registered as "mlp" in place of experts or SwiGLU
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
};
LEHR_MODULE(Qwen3MoELayer);

}  // namespace lehr::model
