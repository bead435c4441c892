// Search for the fastest ways to parallelize a run over a number of devices.
#pragma once

#include <string>
#include <vector>

#include "lehr/plan/make_plan.h"

namespace lehr::plan {

/// Options of search_plans.
struct SearchOptions {
  int64_t devices = 1;
  std::vector<int64_t> microbatch_rows = {};  ///< Sequences per micro-batch to try; empty: those of the config.
  size_t best = 10;                           ///< Number of meshes to return.
  PlanProgress progress = {};                 ///< Of meshes that may be tried: slower ones than the best are not.
};

/// One mesh with its best schedule, reshard policy, activation checkpointing and micro-batch.
struct Candidate {
  train::TrainConfig config;  ///< The run's config with the choices of the search, ready to train or plan.
  Plan plan;
};

/// The result of search_plans, with the number of configurations that were tried.
struct SearchResult {
  std::vector<Candidate> best;  ///< By tokens per second; empty if nothing fits.
  int64_t meshes = 0;           ///< Legal meshes, counted per micro-batch size.
  int64_t layouts = 0;          ///< Layouts of a layer that were measured, counted per kind of checkpointing.
  int64_t simulated = 0;        ///< Steps that were simulated.
  /// How the windows of layers differ, if they do: one layer stands for all of them while meshes are compared.
  std::string window_difference = "";
  /// If nothing fits: the lowest memory of all configurations tried, in bytes per device.
  double least_bytes = 0;
};

/// Tries all degrees whose product is the number of devices, with all schedules (and numbers of stages), reshard
/// policies, reductions of gradients after each micro-batch and once per step, activation checkpointing (none, "op 2",
/// "2", "op" and full), and the given micro-batches, at the config's training.global_batch_size. Model, data, precision
/// and optimizer are the config's. Configurations that the trainer refuses are skipped. A mesh is pruned if even a step
/// without bubble, checkpointing or FSDP communication would be slower than the best found so far, so pruning loses
/// nothing under the cost model. Stages are assembled from measured pieces (plan/stage_pieces.h); the best
/// configurations are then planned by make_plan, and the result holds those plans.
///
/// Throws a usage error for devices or a micro-batch below 1, no global_batch_size, a custom schedule
/// (pipeline_parallel_schedule_csv), layers that differ, and no legal mesh.
SearchResult search_plans(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const SearchOptions& options);

/// Returns the table of the best meshes, and the keys of the first one as TOML.
std::string search_text(const SearchResult& result, const Machine& machine);

}  // namespace lehr::plan
