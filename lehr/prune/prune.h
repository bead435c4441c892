// A pruned model as a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/prune/pruning.h"
#include "lehr/train/model_output.h"

namespace lehr::prune {

/// The record of what was kept, in a child's folder.
inline constexpr const char* kPruningFile = "pruning.json";

struct PruneTarget {
  std::filesystem::path model;   ///< The parent: a model folder with weights, in any layout.
  std::filesystem::path output;  ///< Folder to be made; its parent must be there.
  bool subblocks = false;        ///< A file for each sub-block in place of files by size.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
};

/// What was made.
struct PruneReport : train::WrittenModel {
  std::vector<descriptor::BlockConfig> before;
  std::vector<descriptor::BlockConfig> after;
  std::vector<std::string>
      left_out;  ///< Tensors of the parent that need not be stored: a copy of tied embeddings, say.
};

/// Writes the child that keeps this of the parent: weights, tensor by tensor, in the parent's types and layout of
/// experts; config.json, with block configs if layers differ, else with their sizes; pruning.json; the
/// tokenizer's files. A pruning that keeps all gives the parent's weights and config.json byte for byte. The folder
/// appears under its name when everything is on the disk. Throws usage errors before anything is written.
PruneReport write_pruned(const PruneTarget& target, const Pruning& pruning, const descriptor::ModelFamilies& families);

}  // namespace lehr::prune
