// The best ways to spread a run over a number of devices.
#pragma once

#include <string>
#include <vector>

#include "lehr/plan/plan.h"

namespace lehr::plan {

struct SearchOptions {
  int64_t devices = 1;
  std::vector<int64_t> microbatch_rows = {};  ///< To try; empty: those of the config.
  size_t best = 10;                           ///< Meshes to give.
};

/// One mesh with the best of its schedules, reshard policies, ways of checkpointing and microbatches.
struct Candidate {
  train::TrainConfig config;  ///< Of the run, with what was found: a config to train or plan.
  Plan plan;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< By tokens a second; empty if nothing fits.
  int64_t meshes = 0;           ///< Legal ones, each with its microbatches.
  int64_t layouts = 0;          ///< Layouts of a layer that were measured, those that are computed again anew.
  int64_t simulated = 0;        ///< Steps that were timed.
  /// If nothing fits: what the least demanding of those tried would take of a device, in bytes.
  double least_bytes = 0;
};

/// Tries all degrees whose product is the number of devices, with all schedules (and numbers of stages), reshard
/// policies, activation checkpointing (none, "op 2", "2", "op" and full), and the microbatches given, at the config's
/// training.global_batch_size; model, data, precision and optimizer are the config's. What the trainer refuses is left
/// out. A mesh is passed over when not even a step without bubble, checkpointing or sharing of weights would bring it
/// among the best found so far, so that nothing good is lost under the cost model. Stages are put together from
/// measured pieces (plan/stage_pieces.h); those found are then planned as make_plan does, which is what is given.
///
/// Throws usage errors: devices below 1, a microbatch below 1, a config without a global_batch_size or with a schedule
/// of its own (pipeline_parallel_schedule_csv).
SearchResult search_plans(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const SearchOptions& options);

/// The table of the best, and the keys of the first one as TOML.
std::string search_text(const SearchResult& result, const Machine& machine);

}  // namespace lehr::plan
