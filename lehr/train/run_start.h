// The state that a run starts from: a checkpoint of its own, another run's, or initial values.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/train/initial_load.h"
#include "lehr/train/run.h"

namespace lehr::train {

/// The source of a run's initial values, found and checked before memory is allocated.
struct RunStart {
  std::optional<std::filesystem::path> checkpoint = {};  ///< The run's own, to resume from.
  std::unique_ptr<InitialLoad> initial_load = {};        ///< For a new run; with adapters always (base weights).
  std::vector<std::string> changes = {};  ///< Differences from the run that it continues, one sentence each.
  int64_t steps = 0;                      ///< training.steps as the user set it.
};

/// Opens the checkpoint folder of the run (`run.checkpoints`) and finds the start. Sets `run.state`, `run.lr_factor`
/// and `training.steps`. Throws usage errors: a folder with checkpoints although checkpoint.enable is false, a
/// checkpoint that this run cannot continue, weights that do not fit the model, a schedule that does not fit.
RunStart find_start(Run& run);

/// Allocates parameters on the device. `run.model` is on meta until then.
void allocate_parameters(Run& run);

/// Allocates the optimizer's state, and loads or initializes everything.
void load_or_initialize(Run& run, const RunStart& start);

}  // namespace lehr::train
