// Conversion of a model folder to another layout, dtype or file size, one tensor at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/pretrained/model_output.h"
#include "lehr/pretrained/replacements.h"
#include "lehr/state/file_plan.h"

namespace lehr::pretrained {

/// Options of convert_checkpoint.
struct ConvertOptions {
  std::filesystem::path model;                          ///< Folder with config.json and weights.
  std::filesystem::path output;                         ///< Folder to create; its parent must exist.
  std::optional<descriptor::ExpertLayout> layout = {};  ///< Unset: the layout of `model`.
  std::optional<at::ScalarType> dtype = {};             ///< Dtype of floating-point tensors; unset: unchanged.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  /// Write one file per sub-block (pretrained/subblocks.h), regardless of size, instead of splitting by size.
  bool subblocks = false;
  std::vector<Replacement> replacements = {};  ///< Sub-blocks to take from other folders.
  std::function<void()> before_each = {};      ///< As in ModelOutput.
};

/// The result of convert_checkpoint.
struct ConvertReport : WrittenModel {
  std::vector<std::string> left_out;  ///< Tensors of `model` that need not be stored, such as a copy of tied
                                      ///< embeddings.
};

/// Streams the weights through the family's state map and the inverse of the new layout's, one tensor at a time, so
/// that only one is in memory. With replacements, the new config.json has the block configs of the replacements. The
/// folder gets its final name after all of it is on disk. Throws a usage error if the folder exists, and for a
/// checkpoint that does not match config.json.
ConvertReport convert_checkpoint(const ConvertOptions& options, const descriptor::ModelFamilies& families);

}  // namespace lehr::pretrained
