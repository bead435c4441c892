// What a new run takes over from checkpoint.initial_load_path: weights, or the state of another run, in whole or in
// part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/model.h"
#include "lehr/optim/optimizer.h"
#include "lehr/state/weights.h"
#include "lehr/train/config.h"
#include "lehr/train/run_checkpoint.h"
#include "lehr/train/weights.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

/// A folder of weights, or a checkpoint of another run, opened. Of many ranks all make one and call its functions
/// together; each reads its own boxes alone.
class InitialLoad {
 public:
  /// References must outlive this object. Throws usage errors: no such folder, an adapter, no checkpoint of a run where
  /// one is needed.
  InitialLoad(const TrainConfig& config, const descriptor::ModelArgs& args);

  /// Throws a usage error, as load does, for all that can be told from the headers of the files: weights that do not
  /// fit, a pattern that matches none, state of another optimizer or other data than `now`'s. `model` may be on meta.
  void check(const nn::Model& model, const RunState& now) const;

  /// Where the run stands after `load`: what it takes over of the other run's state, and `now` for the rest.
  RunState joined(const RunState& now) const;

  /// Fills the model, and the (allocated) optimizer where its state is taken over. Returns where the run stands:
  /// `now`, or, without checkpoint.initial_load_model_only, with the other run's steps and its places in the data and
  /// the schedule but for what checkpoint.exclude_from_loading names. What starts as in a new run is logged.
  RunState load(
      nn::Model& model,
      optim::Optimizer& optimizer,
      mesh::DistributedContext* mesh,
      const RunState& now,
      Logger& log) const;

 private:
  bool takes(const std::string& part) const;

  const TrainConfig& config_;
  const descriptor::ModelArgs& args_;
  std::filesystem::path folder_;
  state::WeightReader reader_;
  LoadRules rules_;
  std::optional<RunState> then_;  // of the other run, if it is taken over
};

}  // namespace lehr::train
