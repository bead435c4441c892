// A model folder in another layout, type or cut into files, without a model in memory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/state/file_plan.h"
#include "lehr/train/model_output.h"
#include "lehr/train/replacements.h"

namespace lehr::train {

struct ConvertOptions {
  std::filesystem::path model;                          ///< Folder with config.json and weights.
  std::filesystem::path output;                         ///< Folder to be made; its parent must be there.
  std::optional<descriptor::ExpertLayout> layout = {};  ///< None: the one that `model` has.
  std::optional<at::ScalarType> dtype = {};             ///< Of floating-point tensors; none: their own.
  int64_t max_shard_bytes = state::kDefaultMaxShardBytes;
  /// A file for each sub-block (train/subblocks.h), whatever their size, in place of files by size.
  bool subblocks = false;
  std::vector<Replacement> replacements = {};  ///< Halves of layers that come from other folders.
};

struct ConvertReport : WrittenModel {
  std::vector<std::string> left_out;  ///< Tensors of `model` that need not be stored: a copy of tied embeddings, say.
};

/// Streams the weights through the family's state map and the inverse of the other layout's, tensor by tensor, so that
/// memory holds one of them. With replacements the new config.json has the block configs of what came in. The folder
/// appears under its name when everything is on the disk. Throws a usage error if it is already there, and for a
/// checkpoint that does not hold what config.json describes.
ConvertReport convert_checkpoint(const ConvertOptions& options, const descriptor::ModelFamilies& families);

}  // namespace lehr::train
