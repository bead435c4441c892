// Loading of checkpoint.initial_load_path into a new run: weights, or the state of another run, in whole or in part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/model.h"
#include "lehr/optim/optimizer.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"
#include "lehr/train/config.h"
#include "lehr/train/run_changes.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

/// An opened folder of weights, or checkpoint of another run. All ranks construct one and call its functions together;
/// each reads only its own shards.
class InitialLoad {
 public:
  /// References must outlive this object. Throws a usage error if the folder does not exist, holds an adapter, or is
  /// not the checkpoint of a run where one is required.
  InitialLoad(const TrainConfig& config, const descriptor::ModelArgs& args);

  /// Throws the usage errors of load() that the headers of the files reveal: weights that do not fit, a pattern that
  /// matches no weight, state of another optimizer or other data than `now`'s. `model` may be on meta. Returns the run
  /// state after `load`: that of a new run, or, without checkpoint.initial_load_model_only, the other run's step and
  /// its positions in the data and the schedule, except for parts in checkpoint.exclude_from_loading.
  RunState check(const nn::Model& model, const ConfiguredRun& now) const;

  /// Returns a sentence for each setting in which `state`, which check returned, differs from the other run's, if the
  /// position in the data is taken over.
  std::vector<std::string> changes(const RunState& state, const ConfiguredRun& now) const;

  /// Fills the model, and the (allocated) optimizer if its state is taken over. Parts that are initialized as in a new
  /// run are logged.
  void load(nn::Model& model, optim::Optimizer& optimizer, mesh::DistributedContext* mesh, Logger& log) const;

 private:
  const RunState* taken(const std::string& part) const;
  RunState joined(const ConfiguredRun& now) const;

  const TrainConfig& config_;
  const descriptor::ModelArgs& args_;
  std::filesystem::path folder_;
  state::WeightReader reader_;
  pretrained::LoadRules rules_;
  std::optional<RunState> then_;  // state of the other run, if it is taken over
};

}  // namespace lehr::train
