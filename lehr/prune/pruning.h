// The record of a pruning: the parts that a pruned model keeps, sufficient to recreate it from its parent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/block_config.h"

namespace lehr::prune {

/// The kept parts of one layer. Indices are the parent's, ascending, and the child has them in that order. The order of
/// channels, experts and KV heads does not affect a layer's output.
struct LayerKeeps {
  bool no_attention = false;               ///< Remove the attention and its norm.
  bool no_ffn = false;                     ///< Remove the feed-forward or MoE sub-block and its norm.
  bool linear_attention = false;           ///< One linear layer in place of the attention (linear_product.h).
  bool linear_ffn = false;                 ///< The same for the feed-forward or MoE sub-block.
  std::vector<int64_t> ffn_channels = {};  ///< Channels of a feed-forward block; empty: all.
  std::vector<int64_t> kv_heads = {};      ///< Empty: all.
  int64_t averaged_kv_heads = 0;           ///< Number of KV heads, each the mean of neighbours; 0: no averaging.
  int64_t window = 0;                      ///< Sliding window of the attention, in tokens; 0: the parent's.
  std::vector<int64_t> experts = {};       ///< Empty: all.
  std::vector<std::vector<int64_t>> expert_channels = {};  ///< One list per kept expert, in order; empty: all.
  int64_t experts_per_token = 0;                           ///< Experts that a token is routed to; 0: the parent's.
  std::vector<int64_t> shared_channels = {};               ///< Channels of the shared expert; empty: all.

  bool keeps_all() const { return *this == LayerKeeps(); }
  bool operator==(const LayerKeeps&) const = default;
};

/// The kept parts of a model.
struct Pruning {
  std::vector<LayerKeeps> layers;  ///< One entry per layer of the parent.
  /// Multiply down_proj by channels before / channels after, so that its sums keep the magnitude that they would have
  /// with randomly chosen channels.
  bool scale_pruned_weights = false;
  Node facts = Node::make_table();  ///< The criteria of the choice, for people to read.
};

/// Returns the layers of the child. Throws a usage error that begins with `where` and names layer and kind if the
/// pruning does not fit the parent: another number of layers, a kind that a layer lacks, indices out of range or not
/// ascending, a number of KV heads that does not divide the parent's, a window that is not smaller than that of the
/// parent's block config, fewer experts than a token is routed to, more experts per token than the parent's.
std::vector<descriptor::BlockConfig> child_blocks(
    const Pruning& pruning, const std::vector<descriptor::BlockConfig>& parent, const std::string& where);

/// Returns the content of a child's pruning.json:
/// {"parent": DIR, "chosen_by": {...}, "scale_pruned_weights": false,
///  "layers": [{"layer": 3, "ffn_channels": [0, 2], "kv_heads": [1], "drop": ["attention"], ...}]}.
/// Unchanged layers are omitted.
std::string pruning_json(const Pruning& pruning, const std::filesystem::path& parent);

/// Reads pruning.json for a parent of `num_layers` layers. Throws usage errors with file and key for unknown keys and
/// invalid indices.
Pruning read_pruning(const std::filesystem::path& file, int64_t num_layers);

}  // namespace lehr::prune
