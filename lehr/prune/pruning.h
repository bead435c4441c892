// What a pruned model keeps of its parent: the record that a child carries, and all that is needed to make it again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/block_config.h"

namespace lehr::prune {

/// What is kept of one layer. Indices are the parent's, ascending, and stand in the child in that order: the order of
/// channels and of experts changes nothing of what a layer computes, that of KV heads neither.
struct LayerKeeps {
  bool no_attention = false;               ///< The attention is left out, with its norm.
  bool no_ffn = false;                     ///< The feed-forward block or mixture is left out, with its norm.
  std::vector<int64_t> ffn_channels = {};  ///< Of a feed-forward block; empty: all.
  std::vector<int64_t> kv_heads = {};      ///< Empty: all.
  int64_t averaged_kv_heads = 0;           ///< So many KV heads, each the mean of neighbours; 0: none is averaged.
  std::vector<int64_t> experts = {};       ///< Empty: all.
  std::vector<std::vector<int64_t>> expert_channels = {};  ///< For each expert that is kept, in order; empty: all.

  bool keeps_all() const { return *this == LayerKeeps(); }
  bool operator==(const LayerKeeps&) const = default;
};

struct Pruning {
  std::vector<LayerKeeps> layers;  ///< One for each layer of the parent.
  /// Rows of down_proj are multiplied with channels before / channels after, so that their sums stay as large as those
  /// of random channels would be.
  bool scale_pruned_weights = false;
  Node facts = Node::make_table();  ///< How it was chosen, for people.
};

/// The layers of the child. Throws a usage error, behind `where`, that names the layer and the kind for what does not
/// fit the parent: another number of layers, a kind that a layer has not, indices out of range or not ascending, KV
/// heads of which the parent's are no multiple, fewer experts than a token goes to.
std::vector<descriptor::BlockConfig> child_blocks(
    const Pruning& pruning, const std::vector<descriptor::BlockConfig>& parent, const std::string& where);

/// The content of a child's pruning.json:
/// {"parent": DIR, "chosen_by": {...}, "scale_pruned_weights": false,
///  "layers": [{"layer": 3, "ffn_channels": [0, 2], "kv_heads": [1], "drop": ["attention"], ...}]}, where layers that
/// keep all are left out.
std::string pruning_json(const Pruning& pruning, const std::filesystem::path& parent);

/// Reads it for a parent of that many layers. Throws usage errors with file and key for what is unknown or no index.
Pruning read_pruning(const std::filesystem::path& file, int64_t num_layers);

}  // namespace lehr::prune
