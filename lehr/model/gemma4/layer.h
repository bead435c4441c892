// One Gemma 4 decoder layer.
#pragma once

#include <optional>

#include "lehr/mesh/distributed_context.h"
#include "lehr/model/layer_pattern.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

/// Sizes of one Gemma 4 decoder layer. Layers differ by the pattern only, so that there are no no-op flags.
struct Gemma4LayerParameters {
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;  ///< Of layers with a window,
  double rms_norm_eps;
  int64_t head_dim;  ///< and these.
  double initializer_range = 0.02;
  FullAttentionHeads full_attention = {};     ///< The heads of the other layers; num_key_value_heads is set.
  std::optional<nn::MoEParameters> moe = {};  ///< The experts of each layer, if there are any.
  // Passed to the attention of a layer by attention_parameters.
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<double> attention_scale = 1;
  LayerPattern pattern = {};
};

/// Attention with QK-norm and normed values, then GeGLU, each with a norm before and after it; the result is multiplied
/// by a number of the layer that is not trained. With experts, the feed-forward block is the sum of a GeGLU and an MoE
/// layer, which have a norm after them each. Experts have a norm of their own before them, and the router another one
/// (https://ai.google.dev/gemma/docs/core/model_card_4).
class Gemma4LayerImpl : public nn::Module {
 public:
  explicit Gemma4LayerImpl(const Gemma4LayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  nn::GroupedQueryAttention self_attn{nullptr};
  nn::GeGLU mlp{nullptr};
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
  nn::RMSNorm pre_feedforward_layernorm{nullptr};
  nn::RMSNorm post_feedforward_layernorm{nullptr};
  // Empty without experts.
  nn::MoELayer moe{nullptr};
  nn::RMSNorm post_feedforward_layernorm_1{nullptr};  // of the GeGLU's output
  nn::RMSNorm pre_feedforward_layernorm_2{nullptr};   // of the experts' input
  nn::RMSNorm post_feedforward_layernorm_2{nullptr};  // of the experts' output
  at::Tensor layer_scalar;                            // (1) float32 state
};
LEHR_MODULE(Gemma4Layer);

/// Applies tensor and sequence parallelism to a layer; called by parallelize_decoder.h.
void tensor_parallel(Gemma4LayerImpl& layer, mesh::DistributedContext& context);

}  // namespace lehr::model
