// What a program can train: model families, each with the functions that build its runs.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/shard/options.h"
#include "lehr/train/builders.h"

namespace lehr::train {

/// Lays a model that is on meta out on a mesh. All ranks call it.
using Parallelize = std::function<shard::FullySharded(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options)>;

/// A model family and how its runs are built (torchtitan's notion). The state-dict adapter is the family's: see
/// ModelArgs::state_map and to_hf_config.
struct TrainSpec {
  descriptor::ModelFamily family;
  Builders build = {};
  /// The family's; without one its models train on one device only.
  Parallelize parallelize = {};
};

/// The train specs that a program knows; a plain value, made where the program starts.
class TrainSpecs {
 public:
  /// Throws a usage error if a family of that name, or one that reads the same model_type, is already there.
  void add(TrainSpec spec);
  /// A family that is built as usual.
  void add(descriptor::ModelFamily family) { add(TrainSpec{.family = std::move(family)}); }

  const descriptor::ModelFamilies& families() const { return families_; }
  /// The spec that the config asks for: by model.hf_assets_path's config.json if that is given, else by model.name.
  /// Throws a usage error that lists what is known.
  const TrainSpec& at(const ModelConfig& config) const;

 private:
  descriptor::ModelFamilies families_;
  std::map<std::string, TrainSpec> specs_;
};

}  // namespace lehr::train
