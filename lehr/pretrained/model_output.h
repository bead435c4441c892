// Writing of a new model folder: weights streamed to files, config.json and the other files of a model.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/state/file_plan.h"
#include "lehr/state/map_stream.h"

namespace lehr::pretrained {

/// A model folder to write.
struct ModelOutput {
  std::filesystem::path model;   ///< Source of the tokenizer's and other files to copy.
  std::filesystem::path output;  ///< Folder to create; its parent must exist.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  bool subblocks = false;  ///< Write one file per sub-block (pretrained/subblocks.h), regardless of size.
  std::vector<std::pair<std::string, std::string>> texts = {};  ///< Names and contents of text files, such as
                                                                ///< config.json.
  std::function<void()> before_each = {};  ///< Called before each tensor is written; if it throws, the folder is
                                           ///< removed.
};

/// Statistics of a written folder.
struct WrittenModel {
  int64_t num_tensors = 0;
  int64_t num_files = 0;                ///< Weight files.
  int64_t num_bytes = 0;                ///< Size of all tensors.
  std::vector<std::string> companions;  ///< Other files: config.json and the tokenizer's.
};

/// Throws a usage error if the folder exists, or its parent does not.
void require_new_folder(const std::filesystem::path& output);

/// Returns the config.json of the text model in the folder `model` without what does not hold for a folder that is made
/// from it (descriptor::text_config_of, descriptor::plain_config).
Node plain_text_config(const std::filesystem::path& model);

/// Replaces the layer sizes in another model's config.json by those of `args`: block configs if layers differ;
/// otherwise the common sizes without block configs, so that every reader of the family can read it.
void set_blocks(Node& config, const descriptor::ModelArgs& args);

/// Returns the text of a file config.json that holds `config`: that of `source`, another model's, if it holds the same.
std::string config_text(const std::filesystem::path& source, const Node& config);

/// Writes the outputs of `map`, the checkpoint tensors of the model that `args` describes, one at a time. The folder
/// gets its final name after all of it is on disk. Throws the errors of require_new_folder, and runtime errors of the
/// disk.
WrittenModel write_model_folder(
    const ModelOutput& options,
    const descriptor::ModelArgs& args,
    const state::BoundMap& map,
    const state::TensorSource& source,
    const descriptor::ModelFamilies& families);

}  // namespace lehr::pretrained
