// Resolves activation_checkpoint.mode = "auto" at the start of a run.
#pragma once

#include <optional>
#include <string>

#include "lehr/train/recompute_choice.h"
#include "lehr/train/run.h"

namespace lehr::train {

/// Parameters from which on the memory of a model is worth a forecast that nothing else needs.
constexpr int64_t kLargeModel = 20'000'000;

/// The choice of activation checkpointing for a run, and its reason.
struct RunRecompute {
  std::string line = {};                      ///< For the start-up report; empty unless the mode is "auto".
  std::optional<StepForecast> forecast = {};  ///< Of the chosen or given mode, on the main rank, if there is one.
};

/// Replaces mode "auto" in `run.config` by a choice of choose_recompute. The memory granted is nine tenths of that
/// of the system (memory/granted_memory.h), shared by the ranks of a machine; the least of all ranks counts, and the
/// main rank chooses for all. Without a forecast (for a GPU, with fsdp_cpu_offload, or for a model that cannot run on
/// meta) the choice is "op 2". Logs a warning if the run needs more memory than is granted, in whatever mode. All ranks
/// call it together, before the model is built.
RunRecompute choose_for_run(Run& run, const RunEnvironment& environment);

}  // namespace lehr::train
