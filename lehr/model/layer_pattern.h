// Properties that differ between layers with the same weights: windows and rotary positions.
#pragma once

#include <optional>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

struct DecoderConfig;

/// The rotary positions of one kind of layer.
struct Rope {
  double theta = 10000;
  nn::RopeScaling scaling = nn::NoRopeScaling{};
};

/// Lists of layers repeat, so that a pattern such as "three of four layers slide" fits any number of layers.
struct LayerPattern {
  std::optional<int64_t> sliding_window = {};  ///< A token of a sliding layer sees itself and the sliding_window - 1
                                               ///< tokens before it.
  std::vector<bool> sliding = {};              ///< Layers with that window; empty: none.
  std::vector<bool> rotary = {};               ///< Layers with rotary positions; empty: all.

  bool slides(int64_t layer) const { return !sliding.empty() && sliding[static_cast<size_t>(layer) % sliding.size()]; }
  bool rotates(int64_t layer) const { return rotary.empty() || rotary[static_cast<size_t>(layer) % rotary.size()]; }
  /// The window of a layer; nullopt for full attention.
  std::optional<int64_t> window(int64_t layer) const { return slides(layer) ? sliding_window : std::nullopt; }

  /// The pattern whose layer i + count equals layer i of this one; count >= 0.
  LayerPattern shifted(int64_t count) const;
};

/// A pattern in which every layer but each `interval`-th is marked.
std::vector<bool> all_but_every(int64_t interval);

/// Reads layer_types of config.json, one "sliding_attention" or "full_attention" per layer; nullopt without the key.
/// Throws a usage error that names the layer for another type, and for another number of layers.
std::optional<std::vector<bool>> read_layer_types(const Node& config, int64_t num_hidden_layers);

/// Writes layer_types and sliding_window.
void write_layer_types(const DecoderConfig& shape, Node& node);

/// Reads the rotary positions of models whose sliding layers have their own: rope_parameters with a table for each kind
/// of layer, or rope_theta, rope_scaling (of the full layers) and `sliding_key` (the base of the sliding layers). Bases
/// that config.json lacks are those of `full` and `sliding`.
void read_layer_ropes(
    const Node& config, const Rope& full, const Rope& sliding, const char* sliding_key, DecoderConfig& shape);

/// Writes rope_parameters with a table for each kind of layer.
void write_layer_ropes(const DecoderConfig& shape, Node& node);

}  // namespace lehr::model
