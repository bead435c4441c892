// A new model folder: weights that stream into files, config.json and what else belongs to a model beside them.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/state/file_plan.h"
#include "lehr/state/map_stream.h"

namespace lehr::train {

struct ModelOutput {
  std::filesystem::path model;   ///< The tokenizer's files and such are copied from here.
  std::filesystem::path output;  ///< Folder to be made; its parent must be there.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  bool subblocks = false;  ///< A file for each sub-block (train/subblocks.h), whatever their size.
  std::vector<std::pair<std::string, std::string>> texts = {};  ///< Files and what is in them: config.json.
};

/// What was written.
struct WrittenModel {
  int64_t num_tensors = 0;
  int64_t num_files = 0;                ///< Of weights.
  int64_t num_bytes = 0;                ///< Of all tensors.
  std::vector<std::string> companions;  ///< Other files: config.json, the tokenizer's.
};

/// Throws a usage error if the folder is there already, or its parent is not.
void require_new_folder(const std::filesystem::path& output);

/// Gives a config.json that another model's was the layers of `args`: block configs if they differ, and else the sizes
/// that hold for all, and no block configs, so that whoever reads the family's models reads it.
void set_blocks(Node& config, const descriptor::ModelArgs& args);

/// Writes the outputs of `map`, a checkpoint's tensors of the model that `args` describes, one at a time. The folder
/// appears under its name when everything is on the disk. Throws as require_new_folder, and runtime errors of the disk.
WrittenModel write_model_folder(
    const ModelOutput& options,
    const descriptor::ModelArgs& args,
    const state::BoundMap& map,
    const state::TensorSource& source,
    const descriptor::ModelFamilies& families);

}  // namespace lehr::train
