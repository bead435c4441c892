// Writing of a model in memory as a new Hugging Face folder.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/file_plan.h"

namespace lehr::pretrained {

/// Options of save_model.
struct SaveOptions {
  std::filesystem::path output;  ///< Folder to create.
  at::ScalarType dtype;          ///< Dtype of the weights; state keeps its own.
  Node config = {};              ///< The content of config.json; null: what the model's shape writes.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  std::vector<std::pair<std::string, std::string>> texts = {};             ///< Further files: name and content.
  std::vector<std::pair<std::string, std::filesystem::path>> copies = {};  ///< Further files: name, and file to copy.
};

/// Writes weights and config.json of a whole model, without adapters, on one device. The folder gets its final name
/// after all of it is on disk. Throws a usage error if it exists, and runtime errors of the disk.
void save_model(const nn::Model& model, const descriptor::ModelArgs& args, const SaveOptions& options);

/// Returns the names of the files of a model folder that tools read besides weights and config.json: those of the
/// tokenizer, of generation and of sentence-transformers ("1_Pooling/config.json" among them), README and LICENSE.
std::vector<std::string> companions_of(const std::filesystem::path& folder);

/// The companions of a model. Files beside adapters come before those of their base, because the run of the adapters
/// may have changed the tokenizer.
std::vector<std::pair<std::string, std::filesystem::path>> files_beside(const ModelFolder& folder);

}  // namespace lehr::pretrained
