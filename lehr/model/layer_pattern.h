// Properties that differ between layers with the same weights: windows and rotary positions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

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

/// The heads of layers without a window, in models where they differ (Gemma 4).
struct FullAttentionHeads {
  int64_t head_dim = 0;
  int64_t num_key_value_heads = 0;  ///< 0: those of the model.
  bool keys_as_values = false;      ///< nn::GroupedQueryAttentionParameters::keys_as_values
};

/// A pattern in which all layers have the window, or none without one.
LayerPattern with_window(std::optional<int64_t> window);

/// A pattern that marks all layers but every `interval`-th.
std::vector<bool> all_but_every(int64_t interval);

/// Reads layer_types of config.json, one `type` (true) or "full_attention" per layer; nullopt without the key. Throws a
/// usage error that names the layer for another type than those of `expected`, and for another number of layers.
std::optional<std::vector<bool>> read_layer_types(
    const Node& config,
    int64_t num_hidden_layers,
    const std::string& type = "sliding_attention",
    const std::string& expected = "full_attention or sliding_attention");

}  // namespace lehr::model
