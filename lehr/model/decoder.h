// The backbone of decoder-only models: embeddings, layers and final norm of one pipeline stage.
//
// A family supplies its layer and the layer's parameters; everything else is shared here.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lehr/model/cross_layer_inputs.h"
#include "lehr/model/layer_pattern.h"
#include "lehr/model/per_layer_inputs.h"
#include "lehr/model/scaled_embeddings.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/model.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/rms_norm.h"
#include "lehr/nn/rotary.h"
#include "lehr/pipeline/stage.h"

namespace lehr::model {

using nn::ActivationCheckpointing;
using nn::HiddenStatesAggregationMode;
using pipeline::PipelineStageInfo;
using pipeline::TensorDict;

/// Parameters of a decoder backbone whose layers are described by `LayerParameters`.
template <class LayerParameters>
struct DecoderParameters {
  LayerParameters layer;                            ///< Shared by all layers, if they are alike.
  int64_t num_hidden_layers;                        ///< Over all stages.
  double rope_base;                                 ///< Base of the rotary frequencies, theta.
  int64_t max_position_ids;                         ///< Longest sequence.
  std::map<std::string, int64_t> split_vocab_size;  ///< Size of each vocabulary segment.
  std::vector<std::string> split_vocab_order;       ///< The segments in the order of their ids.
  int64_t pipeline_num_virtual_layers_pre = 0;      ///< Cost of the embeddings, in layers.
  int64_t pipeline_num_virtual_layers_post = 0;     ///< Cost of the final norm and the head, in layers.
  nn::RopeScaling rope_scaling = nn::NoRopeScaling{};
  /// One entry per layer over all stages, if layers differ internally. `layer` then holds the values that the backbone
  /// and the heads share with them (hidden_size, head_dim, rms_norm_eps, initializer_range).
  std::vector<LayerParameters> layers = {};
  LayerPattern pattern = {};                           ///< The sliding layers, for sliding_rope.
  std::optional<Rope> sliding_rope = {};               ///< Rotary positions of sliding layers, if they differ.
  nn::NormWeight norm_weight = nn::NormWeight::plain;  ///< Kind of the final norm's weight.
  double embedding_factor = 1;  ///< Multiplies the embeddings, after it is rounded to their dtype.

  const LayerParameters& layer_at(int64_t index) const {
    return layers.empty() ? layer : layers.at(static_cast<size_t>(index));
  }
  nn::SplitVocabulary vocabulary() const { return {split_vocab_size, split_vocab_order}; }
};

/// The stage-independent part of a decoder's shape inference.
struct DecoderStageShape {
  PipelineStageInfo stage;
  HiddenStatesAggregationMode snapshot_mode;
  int64_t layers_before, local_layers, hidden_size;
  int64_t sequence_parts;  // number of parts of a sequence, of which hidden states are one
  at::ScalarType dtype;
  const CrossLayerShape* cross_layer = nullptr;  // null: layers read nothing else
};
/// Implement pipeline::ModuleSupportsPipelining for a stage of this shape.
TensorDict infer_decoder_inputs(const DecoderStageShape& shape, const TensorDict& inputs, int64_t n_microbatches);
TensorDict infer_decoder_outputs(const DecoderStageShape& shape, const TensorDict& inputs, int64_t n_microbatches);

/// Sequence parallelism: hidden states between blocks are one of `count` equal parts of the sequence, while input_ids,
/// position_ids and masks stay whole. With several parts both functions are set.
struct SequenceParts {
  int64_t count = 1;
  std::function<at::Tensor(const at::Tensor& whole)> own = {};    ///< This rank's part (B, T / count) of (B, T).
  std::function<at::Tensor(const at::Tensor& partial)> sum = {};  ///< The sum over ranks, the same on all of them.
};

/// nn::HiddenStatesAggregator for sequences that ranks may share: sums are all-reduced once per stage.
class Snapshots {
 public:
  /// `inputs` and `parts` must outlive the object.
  Snapshots(HiddenStatesAggregationMode mode, const nn::ModelInputs& inputs, const SequenceParts& parts);
  /// Adds hidden states (B, T / parts.count, H).
  void add(const at::Tensor& hidden_states);
  /// Returns all so far after those of earlier stages, (l, B, H); undefined for mode no.
  at::Tensor pack();

 private:
  nn::HiddenStatesAggregator whole_;
  const nn::ModelInputs& inputs_;
  const SequenceParts& parts_;
  bool in_parts_;
  at::Tensor own_mask_;           // (B, T / parts.count, 1)
  std::vector<at::Tensor> sums_;  // (B, H) each: over this rank's part
  at::ScalarType dtype_ = at::kFloat;
};

/// Positions offset..offset+tokens-1, (1, tokens) int64.
at::Tensor default_position_ids(int64_t tokens, int64_t offset, at::Device device);

/// Constructs the layer with this index: by `Layer(params, index)` if layers differ by index, else by `Layer(params)`.
template <class Layer, class LayerParameters>
Layer make_layer(const LayerParameters& params, int64_t index) {
  if constexpr (std::is_constructible_v<typename Layer::Impl, const LayerParameters&, int64_t>) {
    return Layer(params, index);
  } else {
    return Layer(params);
  }
}

/// The number of elements of a head that are rotated: the layer's rotary_dim, if it has that field, or its head_dim;
/// that of full_attention in layers without a window, if it has that field.
template <class LayerParameters>
int64_t rotary_dim_of(const LayerParameters& params, bool slides) {
  if constexpr (requires { params.full_attention; }) {
    return slides ? params.head_dim : params.full_attention.head_dim;
  } else if constexpr (requires { params.rotary_dim; }) {
    return params.rotary_dim.value_or(params.head_dim);
  } else {
    return params.head_dim;
  }
}

/// True for families whose layers may read more than hidden states, which cross_layer() of their parameters tells.
template <class LayerParameters>
inline constexpr bool kHasCrossLayerInputs = requires(LayerParameters p) {
  p.cross_layer();
};

/// A decoder backbone for one stage. `Layer` is a module holder with the constructor `Layer(LayerParameters)`, or
/// `Layer(LayerParameters, index)` if layers differ by index, and `forward(hidden_states, position_embeddings,
/// attention_mask, cache)`. Its norms, their order and the names of its members are its own.
template <class Layer, class LayerParameters>
class DecoderImpl : public nn::Module, public pipeline::ModuleSupportsPipelining {
 public:
  using Parameters = DecoderParameters<LayerParameters>;
  using LayerHolder = Layer;
  using ParametersOfLayer = LayerParameters;

  /// Throws a usage error for inconsistent parameters.
  DecoderImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing);

  /// Returns 'hidden_states' and, if collected, 'hidden_states_snapshot'; for the next stage, what its layers read.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs);

  /// Rotary positions of layers with full attention, for these inputs and the stage's hidden states.
  nn::PositionEmbeddings position_embeddings(const nn::ModelInputs& inputs, const at::Tensor& hidden_states) {
    return rope_provider_(position_ids_of(inputs, hidden_states), hidden_states.scalar_type());
  }
  ActivationCheckpointing checkpointing() const { return checkpointing_; }
  /// The factor on embeddings (DecoderParameters::embedding_factor).
  double embedding_factor() const { return embedding_factor_; }

  /// The dtype of the hidden states that this stage returns: that of its parameters in forward.
  at::ScalarType output_dtype() const;
  int64_t num_local_layers() const { return static_cast<int64_t>(layers->size()); }
  /// The stage that the backbone was built for.
  const PipelineStageInfo& stage() const { return stage_; }

  /// Uses sequence parallelism from now on.
  void set_sequence_parts(SequenceParts parts) { sequence_parts_ = std::move(parts); }
  int64_t sequence_parts() const { return sequence_parts_.count; }
  HiddenStatesAggregationMode hidden_states_snapshot_mode() const { return hidden_states_snapshot_mode_; }
  nn::RotaryEmbeddingProvider& rope_provider() { return rope_provider_; }

  /// Tokens per expert of this stage's MoE layers since the last reset, (layers, E) int64; undefined for a family
  /// without experts.
  at::Tensor moe_tokens_per_expert() { return nn::moe_tokens_per_expert(*this); }
  void reset_moe_stats() { nn::reset_moe_stats(*this); }
  nn::RouterLosses* router_losses() { return router_losses_.get(); }
  /// Makes one more MoE layer contribute to the router losses.
  void share_losses(nn::MoELayerImpl& moe_layer);

  TensorDict infer_stage_inputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override;
  TensorDict infer_stage_outputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override;

  nn::SplitTokenEmbeddings embed_tokens{nullptr};  // first stage only
  PerLayerInputs per_layer{nullptr};               // first stage of models whose layers have inputs of their own
  std::shared_ptr<nn::LayerMapImpl<Layer>> layers;
  nn::RMSNorm norm{nullptr};  // last stage only

 private:
  void add_per_layer_inputs(const Parameters& params);
  void use_token_mask(const at::Tensor& token_mask);
  DecoderStageShape shape() const;
  at::Tensor position_ids_of(const nn::ModelInputs& inputs, const at::Tensor& hidden_states) const;

  PipelineStageInfo stage_;
  HiddenStatesAggregationMode hidden_states_snapshot_mode_;
  ActivationCheckpointing checkpointing_;
  nn::RotaryEmbeddingProvider rope_provider_;
  std::optional<nn::RotaryEmbeddingProvider> sliding_rope_provider_;
  LayerPattern pattern_;
  std::optional<CrossLayerShape> cross_layer_;  // of families whose layers may read more than hidden states
  double embedding_factor_;
  std::shared_ptr<nn::RouterLosses> router_losses_;  // null without experts
  int64_t first_layer_ = 0;
  SequenceParts sequence_parts_;
  int64_t hidden_size_;
};

/// The holder of a backbone.
template <class Layer, class LayerParameters>
class Decoder : public nn::ModuleHolder<DecoderImpl<Layer, LayerParameters>> {
 public:
  using nn::ModuleHolder<DecoderImpl<Layer, LayerParameters>>::ModuleHolder;
  using Impl = DecoderImpl<Layer, LayerParameters>;
};

}  // namespace lehr::model
