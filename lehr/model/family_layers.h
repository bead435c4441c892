// The layers of a family: their sizes, and the sub-blocks that they may lack.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/layer_parameters.h"
#include "lehr/model/layer_sizes.h"

namespace lehr::model {

/// Returns the sizes of a layer of this model, with both sub-blocks.
LayerSizes layer_sizes(const DecoderConfig& config);

/// True if a layer's parameters have no-op flags for its sub-blocks: then layers may differ.
template <class LayerParameters>
inline constexpr bool kLayersMayDiffer = requires(LayerParameters p) {
  p.attention_no_op;
  p.ffn_no_op;
};

/// True if a layer has members for linear layers in place of its sub-blocks.
template <class Layer>
inline constexpr bool kMayBeLinear = requires(typename Layer::Impl layer) {
  layer.linear_attn;
  layer.linear_mlp;
};

/// Sets the flags for sub-blocks that a layer lacks, or that are one linear layer.
template <class LayerParameters>
void set_forms(const descriptor::BlockConfig& block, LayerParameters& params) {
  params.attention_no_op = block.attention_is_no_op();
  params.ffn_no_op = block.ffn_is_no_op();
  if constexpr (requires { params.attention_linear; }) {
    params.attention_linear = block.attention_is_linear();
    params.ffn_linear = block.ffn_is_linear();
  }
}

/// The sizes of a layer of `Family`, which may differ from those of a model whose layers are all alike.
template <class Family>
auto layer_parameters_of(const DecoderConfig& config) {
  if constexpr (requires { Family::layer_parameters(config); }) {
    return Family::layer_parameters(config);
  } else {
    return dense_layer_parameters(config);
  }
}

/// The backbone of `Family`, a module holder.
template <class Family>
using BackboneOf =
    Decoder<typename Family::Layer, decltype(layer_parameters_of<Family>(std::declval<const DecoderConfig&>()))>;

}  // namespace lehr::model
