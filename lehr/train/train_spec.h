// Train specs: the model families that a program can train, each with the functions that build its runs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/shard/options.h"
#include "lehr/train/builders.h"

namespace lehr::train {

/// Applies a mesh to a model on meta. All ranks must call it.
using Parallelize = std::function<shard::FullySharded(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options)>;

/// A model family and the builders of its runs (torchtitan's TrainSpec). The state-dict adapter belongs to the family:
/// see ModelArgs::state_map and to_hf_config.
struct TrainSpec {
  descriptor::ModelFamily family;
  Builders build = {};
  /// If empty, the family's models train on one device only.
  Parallelize parallelize = {};
};

/// The train specs of a program; a plain value, constructed at program start.
class TrainSpecs {
 public:
  /// Throws a usage error if there is already a family with this name, or one that reads the same model_type.
  void add(TrainSpec spec);
  /// Adds a family with the default builders.
  void add(descriptor::ModelFamily family) { add(TrainSpec{.family = std::move(family)}); }

  const descriptor::ModelFamilies& families() const { return families_; }
  /// Returns the spec for the config: by model.hf_assets_path's config.json if that is set, else by model.name. Throws
  /// a usage error that lists the known families, or if both are set and differ.
  const TrainSpec& at(const ModelConfig& config) const;
  /// Returns the spec of the family that reads `folder`/config.json. Throws a usage error that lists the known ones.
  const TrainSpec& of_hf_folder(const std::filesystem::path& folder) const;

 private:
  descriptor::ModelFamilies families_;
  std::map<std::string, TrainSpec> specs_;
};

}  // namespace lehr::train
