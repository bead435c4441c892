// Output of a pruned model as a model folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/pretrained/model_output.h"
#include "lehr/prune/pruning.h"

namespace lehr::prune {

/// File in a child's folder that records the kept parts.
inline constexpr const char* kPruningFile = "pruning.json";

/// The parent, and the folder of the child.
struct PruneTarget {
  std::filesystem::path model;   ///< The parent: a model folder with weights, in any layout.
  std::filesystem::path output;  ///< Folder to create; its parent folder must exist.
  bool subblocks = false;        ///< Write one file per sub-block instead of files by size.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  std::function<void()> before_each = {};  ///< As in pretrained::ModelOutput.
};

/// Summary of a written child.
struct PruneReport : pretrained::WrittenModel {
  std::vector<descriptor::BlockConfig> before;
  std::vector<descriptor::BlockConfig> after;
  std::vector<std::string>
      left_out;  ///< Tensors of the parent that need not be stored, such as a copy of tied embeddings.
  /// Layers that lost KV heads and whose norm of the keys spans all heads: now it spans the kept ones, so their keys
  /// have another scale, and the child's output differs by more than the contribution of the removed heads.
  std::vector<int64_t> rescaled_keys;
};

/// Writes the child that keeps these parts of the parent: weights, tensor by tensor, in the parent's dtypes and layout
/// of experts; config.json, with block configs if layers differ, otherwise with the new sizes; pruning.json; the
/// tokenizer's files. A pruning that keeps everything yields the parent's weights and config.json byte for byte. The
/// folder appears under its name only when everything is on disk. Throws usage errors before anything is written.
PruneReport write_pruned(const PruneTarget& target, const Pruning& pruning, const descriptor::ModelFamilies& families);

}  // namespace lehr::prune
