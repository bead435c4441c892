// The keys of config.json for differences between layers: layer_types, and rotary positions by kind of layer.
#pragma once

#include "lehr/config/node.h"
#include "lehr/model/layer_pattern.h"

namespace lehr::model {

struct DecoderConfig;

/// Writes layer_types and sliding_window.
void write_layer_types(const DecoderConfig& shape, Node& node);

/// Reads the windows of Qwen2 and Qwen3: with use_sliding_window, layers from max_window_layers on have sliding_window
/// tokens, or those of layer_types.
void read_qwen_windows(const Node& config, DecoderConfig& shape);
void write_qwen_windows(const DecoderConfig& shape, Node& node);

/// Reads the rotary positions of models whose sliding layers have their own: rope_parameters with a table for each kind
/// of layer, or rope_theta, rope_scaling (of the full layers) and `sliding_key` (the base of the sliding layers; null
/// if they have no key). Bases that config.json lacks are those of `full` and `sliding`. `proportional` is that of
/// RopeScalingContext.
void read_layer_ropes(
    const Node& config,
    const Rope& full,
    const Rope& sliding,
    const char* sliding_key,
    DecoderConfig& shape,
    bool proportional = false);

/// Writes rope_parameters with a table for each kind of layer.
void write_layer_ropes(const DecoderConfig& shape, Node& node);

}  // namespace lehr::model
