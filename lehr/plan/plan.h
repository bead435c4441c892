// A training run before it is started: its time, memory, bubble and communication, from the config alone.
#pragma once

#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/pipeline/simulate.h"
#include "lehr/plan/machine.h"
#include "lehr/plan/memory.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// A config of which everything is decided that a run decides when it starts.
struct ResolvedRun {
  train::TrainConfig config;  ///< data_parallel_shard_degree and global_batch_size are numbers.
  mesh::DeviceMeshParameters mesh;
  std::unique_ptr<descriptor::ModelArgs> args;
  int64_t microbatches = 1;  ///< Of a step, on each rank.
  int64_t rows = 1;          ///< Of a microbatch.
};

/// Resolves `config` for a world of `devices`; 0: the product of the degrees. No tokenizer or data is read: the shape
/// is checked against the byte tokenizer. Throws the usage errors that the trainer would (train/mesh_rules.h,
/// DeviceMeshParameters::check), and one for data_parallel_shard_degree = -1 without `devices` beside another degree
/// above 1.
ResolvedRun resolve(const train::TrainConfig& config, const train::TrainSpec& spec, int64_t devices = 0);

/// Whether whole weights stay for all microbatches of a step (CostContext::keeps_gathered).
bool keeps_gathered(const train::TrainConfig& config);

/// The program of a step; on one stage its microbatches one after the other.
pipeline::Program program_of(const ResolvedRun& run);

/// What a schedule would do with the same mesh and batch.
struct SchedulePrediction {
  std::string name;
  int64_t stages_per_rank = 1;
  double step_seconds = 0;
  double bubble_share = 0;
  double peak_bytes = 0;  ///< Of the rank that holds most.
  bool fits = false;
  bool configured = false;
};

/// A part of the step's time on the rank that works longest.
struct TimeShare {
  std::string name;  ///< "matrix products", "waiting for tp", "pipeline bubble"
  double seconds = 0;
};

struct PlanOptions {
  int64_t devices = 0;            ///< 0: the product of the degrees.
  bool compare_schedules = true;  ///< Fill Plan::schedules.
};

struct Plan {
  ResolvedRun run;
  Machine machine;
  descriptor::ModelCounts counts;
  std::string schedule;  ///< "1F1B"; "none" on one stage.
  std::vector<int64_t> rank_of_stage;
  std::vector<PlannedStage> stages;
  pipeline::Timeline timeline;
  std::vector<RankMemory> memory;  ///< By rank along pp.

  double step_seconds = 0;
  double tokens_per_second = 0;  ///< Of all devices.
  double mfu = 0;                ///< Share of the peak, counting what causal attention needs.
  double mfu_full = 0;           ///< The same counting the whole square of attention, as torchtitan does.
  double bubble_share = 0;
  std::vector<TimeShare> time;                   ///< Sums to step_seconds; longest first.
  std::vector<CommunicationCost> communication;  ///< Of the rank that works longest, over a step, pp included.
  std::string bottleneck;                        ///< In words.

  std::vector<int64_t> layers_by_stage() const;
  size_t fullest_rank = 0;  ///< Along pp.
  double peak_bytes() const { return memory[fullest_rank].peak.total(); }
  bool fits() const { return peak_bytes() <= machine.usable_bytes(); }

  std::vector<SchedulePrediction> schedules;  ///< Best first; empty on one stage.
  std::vector<std::string> warnings;
};

/// Plans a run. Ranks that differ by more than their place along pp are alike, so that the size of the world costs
/// nothing. Throws usage errors as resolve, build_pipeline_program and measure_stage do.
Plan make_plan(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const PlanOptions& options = {});

/// All schedules that are legal for the run's mesh and batch, by predicted step time, those that fit first. `costs` are
/// those of the run.
std::vector<SchedulePrediction> compare_schedules(
    const ResolvedRun& run, StageCosts& costs, const CostContext& context);

}  // namespace lehr::plan
