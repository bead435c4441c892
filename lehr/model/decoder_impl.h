// Member definitions of model/decoder.h, included by the one .cpp of each family that instantiates them.
#pragma once

#include <algorithm>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/decoder.h"
#include "lehr/nn/attention.h"

namespace lehr::model {

template <class Layer, class LayerParameters>
DecoderImpl<Layer, LayerParameters>::DecoderImpl(
    const Parameters& params,
    const PipelineStageInfo& stage,
    HiddenStatesAggregationMode hidden_states_snapshot_mode,
    ActivationCheckpointing enable_checkpointing)
    : stage_(stage),
      hidden_states_snapshot_mode_(hidden_states_snapshot_mode),
      checkpointing_(enable_checkpointing),
      rope_provider_(params.rope_base, rotary_dim_of(params.layer, false), params.rope_scaling),
      pattern_(params.pattern),
      embedding_factor_(params.embedding_factor),
      hidden_size_(params.layer.hidden_size) {
  if (params.sliding_rope) {
    sliding_rope_provider_.emplace(
        params.sliding_rope->theta, rotary_dim_of(params.layer, true), params.sliding_rope->scaling);
  }
  const auto init = nn::Init::normal(params.layer.initializer_range);
  if (stage.is_current_stage_first()) {
    embed_tokens = register_module("embed_tokens", nn::SplitTokenEmbeddings(params.vocabulary(), hidden_size_, init));
  }
  add_per_layer_inputs(params);
  require(
      params.layers.empty() || static_cast<int64_t>(params.layers.size()) == params.num_hidden_layers,
      "layers: expected parameters for each of the {} layers, found {}",
      params.num_hidden_layers,
      params.layers.size());
  const auto [begin, end] = pipeline::distribute_layers_for_pipeline_stage(
      params.num_hidden_layers, params.pipeline_num_virtual_layers_pre, params.pipeline_num_virtual_layers_post, stage);
  first_layer_ = begin;
  layers = register_module("layers", std::make_shared<nn::LayerMapImpl<Layer>>());
  for (int64_t index = begin; index < end; ++index) {
    layers->insert(index, make_layer<Layer>(params.layer_at(index), index));
  }
  for (nn::MoELayerImpl* moe_layer : nn::moe_layers(*this)) {
    share_losses(*moe_layer);
  }
  if (stage.is_current_stage_last()) {
    norm = register_module("norm", nn::RMSNorm(hidden_size_, params.layer.rms_norm_eps, params.norm_weight));
  }
  require(
      embed_tokens || norm || nn::count_parameters(*this) > 0,
      "pipeline stage {} of {}: is empty: all sub-blocks of its layers {} to {} are no-ops (block_configs); use fewer "
      "stages",
      stage.current_stage,
      stage.num_stages,
      begin,
      end - 1);
}

template <class Layer, class LayerParameters>
void DecoderImpl<Layer, LayerParameters>::add_per_layer_inputs(const Parameters& params) {
  if constexpr (kHasCrossLayerInputs<LayerParameters>) {
    cross_layer_ = params.layer.cross_layer();
    const int64_t width = cross_layer_->hidden_size_per_layer_input;
    if (width > 0 && stage_.is_current_stage_first()) {
      per_layer = register_module(
          "per_layer",
          PerLayerInputs(PerLayerInputsParameters{
              .vocabulary = params.vocabulary(),
              .hidden_size = hidden_size_,
              .num_hidden_layers = params.num_hidden_layers,
              .hidden_size_per_layer_input = width,
              .rms_norm_eps = params.layer.rms_norm_eps,
              .init = nn::Init::normal(params.layer.initializer_range)}));
    }
  }
}

template <class Layer, class LayerParameters>
nn::ModelOutputs DecoderImpl<Layer, LayerParameters>::forward(const nn::ModelInputs& inputs) {
  Snapshots snapshots(hidden_states_snapshot_mode_, inputs, sequence_parts_);

  at::Tensor hidden_states = inputs.hidden_states;  // (B, T, H)
  if (embed_tokens) {
    require(inputs.input_ids.defined(), "input_ids: required by the first stage");
    hidden_states = scaled_embeddings(embed_tokens(inputs.input_ids), embedding_factor_);
    snapshots.add(hidden_states);
  }
  require(
      hidden_states.defined(), "hidden_states: stage {} requires those of the previous stage", stage_.current_stage);

  require(
      inputs.caches == nullptr || static_cast<int64_t>(inputs.caches->size()) == num_local_layers(),
      "caches: expected one per layer of the stage ({}), found {}",
      num_local_layers(),
      inputs.caches != nullptr ? inputs.caches->size() : 0);
  use_token_mask(inputs.token_mask);
  const at::Tensor position_ids = position_ids_of(inputs, hidden_states);
  const nn::PositionEmbeddings of_full = rope_provider_(position_ids, hidden_states.scalar_type());
  const nn::PositionEmbeddings of_sliding =
      sliding_rope_provider_ ? (*sliding_rope_provider_)(position_ids, hidden_states.scalar_type()) : of_full;

  const nn::AttentionMask attention_mask = nn::with_cumulative_lengths(inputs.attention_mask, hidden_states.size(0));

  std::optional<CrossLayerInputs> across;
  if (cross_layer_) {
    const at::Tensor own = per_layer ? per_layer(inputs.input_ids, hidden_states) : at::Tensor();
    across.emplace(*cross_layer_, first_layer_, position_ids.size(-1), own, inputs.cross_layer);
  }
  nn::LayerDistances distances(inputs.distillation.get());
  size_t local = 0;
  for (auto& [index, layer] : *layers) {
    nn::KeyValueCache* cache = inputs.caches != nullptr ? &inputs.caches->at(local++) : nullptr;
    if (inputs.layer_inputs != nullptr) {
      inputs.layer_inputs->push_back(hidden_states);
    }
    const nn::PositionEmbeddings& position_embeddings = pattern_.slides(index) ? of_sliding : of_full;
    if constexpr (kHasCrossLayerInputs<LayerParameters>) {
      hidden_states = value_of(across, "across")
                          .run(checkpointing_, index, layer, hidden_states, position_embeddings, attention_mask, cache);
    } else {
      // Captured by value: with activation checkpointing, backward calls this after the frame has ended.
      auto block = [current = layer, position_embeddings, mask = attention_mask, cache](const at::Tensor& x) mutable {
        return current(x, position_embeddings, mask, cache);
      };
      hidden_states =
          cache == nullptr ? nn::run_layer(checkpointing_, index, block, hidden_states) : block(hidden_states);
    }
    if (inputs.layer_outputs != nullptr) {
      inputs.layer_outputs->push_back(hidden_states);
    }
    distances.add(index, hidden_states);
    snapshots.add(hidden_states);
  }
  if (norm) {
    hidden_states = norm(hidden_states);
  }
  return {
      .hidden_states = hidden_states,
      .hidden_states_snapshot = snapshots.pack(),
      .logps = {},
      .scores = {},
      .embeddings = {},
      .distilled = {.cosine_distance = distances.mean()},
      .cross_layer = across ? across->sent(first_layer_ + num_local_layers()) : TensorDict()};
}

// Tells the MoE layers, also those of multi-token prediction, which positions of their hidden states are tokens.
template <class Layer, class LayerParameters>
void DecoderImpl<Layer, LayerParameters>::use_token_mask(const at::Tensor& token_mask) {
  if (router_losses_) {
    const bool in_parts = token_mask.defined() && sequence_parts_.count > 1;
    router_losses_->set_token_mask(in_parts ? sequence_parts_.own(token_mask) : token_mask);
  }
}

template <class Layer, class LayerParameters>
at::Tensor DecoderImpl<Layer, LayerParameters>::position_ids_of(
    const nn::ModelInputs& inputs, const at::Tensor& hidden_states) const {
  if (inputs.position_ids.defined()) {
    return inputs.position_ids;
  }
  int64_t cached = 0;  // a layer without attention has no cache
  for (size_t i = 0; inputs.caches != nullptr && i < inputs.caches->size(); ++i) {
    cached = std::max(cached, inputs.caches->at(i).length());
  }
  return default_position_ids(hidden_states.size(1) * sequence_parts_.count, cached, hidden_states.device());
}

template <class Layer, class LayerParameters>
void DecoderImpl<Layer, LayerParameters>::share_losses(nn::MoELayerImpl& moe_layer) {
  if (!router_losses_) {
    router_losses_ = std::make_shared<nn::RouterLosses>();
  }
  moe_layer.use_losses(router_losses_);
}

template <class Layer, class LayerParameters>
at::ScalarType DecoderImpl<Layer, LayerParameters>::output_dtype() const {
  // State, such as a router's bias, keeps a dtype of its own.
  const auto parameter_of = [](const nn::Module& module) -> std::optional<at::ScalarType> {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      if (!parameter->is_state()) {
        return parameter->shown().scalar_type();
      }
    }
    return std::nullopt;
  };
  for (const auto& entry : *layers) {
    if (const auto dtype = parameter_of(*entry.second)) {
      return *dtype;
    }
  }
  // All local layers are no-ops: the embeddings or the final norm.
  return value_of(parameter_of(*this), "a parameter of the stage");
}

template <class Layer, class LayerParameters>
DecoderStageShape DecoderImpl<Layer, LayerParameters>::shape() const {
  return {
      .stage = stage_,
      .snapshot_mode = hidden_states_snapshot_mode_,
      .layers_before = first_layer_,
      .local_layers = num_local_layers(),
      .hidden_size = hidden_size_,
      .sequence_parts = sequence_parts_.count,
      .dtype = output_dtype(),
      .cross_layer = cross_layer_ ? &*cross_layer_ : nullptr};
}

template <class Layer, class LayerParameters>
TensorDict DecoderImpl<Layer, LayerParameters>::infer_stage_inputs_from_pipeline_inputs(
    const TensorDict& inputs, int64_t n_microbatches) const {
  return infer_decoder_inputs(shape(), inputs, n_microbatches);
}

template <class Layer, class LayerParameters>
TensorDict DecoderImpl<Layer, LayerParameters>::infer_stage_outputs_from_pipeline_inputs(
    const TensorDict& inputs, int64_t n_microbatches) const {
  return infer_decoder_outputs(shape(), inputs, n_microbatches);
}

}  // namespace lehr::model
