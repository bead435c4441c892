// One Gemma 4 decoder layer.
#pragma once

#include <optional>

#include "lehr/mesh/distributed_context.h"
#include "lehr/model/cross_layer_inputs.h"
#include "lehr/model/layer_pattern.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

/// Sizes of one Gemma 4 decoder layer. Layers differ by the pattern and by whether they read keys and values of an
/// earlier one, so that there are no no-op flags.
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
  int64_t hidden_size_per_layer_input = 0;    ///< Width of the input of each layer (PerLayerInputs); 0: there is none.
  int64_t num_hidden_layers = 0;              ///< Layers of the model.
  int64_t num_kv_shared_layers = 0;           ///< The last layers, which read keys and values of earlier ones.
  bool use_double_wide_mlp = false;           ///< Their GeGLU has twice the intermediate_size.
  // Passed to the attention of a layer by attention_parameters.
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<double> attention_scale = 1;
  LayerPattern pattern = {};

  /// What layers read besides the hidden states.
  CrossLayerShape cross_layer() const {
    return {
        .pattern = pattern,
        .num_hidden_layers = num_hidden_layers,
        .num_kv_shared_layers = num_kv_shared_layers,
        .hidden_size_per_layer_input = hidden_size_per_layer_input,
        .sliding = {.num_key_value_heads = num_key_value_heads, .head_dim = head_dim},
        .full = {.num_key_value_heads = full_attention.num_key_value_heads, .head_dim = full_attention.head_dim}};
  }
};

/// Attention with QK-norm and normed values, then GeGLU, each with a norm before and after it; the result is multiplied
/// by a number of the layer that is not trained. With experts, the feed-forward block is the sum of a GeGLU and an MoE
/// layer, which have a norm after them each. Experts have a norm of their own before them, and the router another one
/// (https://ai.google.dev/gemma/docs/core/model_card_4).
class Gemma4LayerImpl : public nn::Module {
 public:
  explicit Gemma4LayerImpl(const Gemma4LayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) and the layer's own input (B, T, P), if it has one, to hidden states (B, T, H).
  /// `shared` is as in nn::GroupedQueryAttention.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr,
      const at::Tensor& input = {},
      nn::KeysAndValues* shared = nullptr);

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
  // Empty without per-layer inputs.
  nn::Linear per_layer_input_gate{nullptr};        // (P, H)
  nn::Linear per_layer_projection{nullptr};        // (H, P)
  nn::RMSNorm post_per_layer_input_norm{nullptr};  // of the projection's output
};
LEHR_MODULE(Gemma4Layer);

/// Applies tensor and sequence parallelism to a layer; called by parallelize_decoder.h.
void tensor_parallel(Gemma4LayerImpl& layer, mesh::DistributedContext& context);

}  // namespace lehr::model
