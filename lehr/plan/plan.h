// Prediction of a training run from its config alone: time, memory, bubble and communication.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/pipeline/simulate.h"
#include "lehr/plan/goodput.h"
#include "lehr/plan/machine.h"
#include "lehr/plan/memory.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// A config with every decision made that a run makes when it starts.
struct ResolvedRun {
  train::TrainConfig config;  ///< data_parallel_shard_degree and global_batch_size are numbers.
  mesh::DeviceMeshParameters mesh;
  std::unique_ptr<descriptor::ModelArgs> args;
  int64_t microbatches = 1;  ///< Per step, on each rank.
  int64_t rows = 1;          ///< Sequences per micro-batch.
};

/// Resolves `config` for a world of `devices`; 0: the product of the degrees. Reads no tokenizer or data: the model's
/// shape is checked against the byte tokenizer. Throws the usage errors that the trainer would (train/mesh_rules.h,
/// DeviceMeshParameters::check), and one for data_parallel_shard_degree = -1 without `devices` if another degree is
/// above 1.
ResolvedRun resolve(const train::TrainConfig& config, const train::TrainSpec& spec, int64_t devices = 0);

/// Returns whether parameters stay unsharded for all micro-batches of a step (CostContext::keeps_gathered).
bool keeps_gathered(const train::TrainConfig& config);

/// Returns the program of a step; with one stage, its micro-batches one after the other.
pipeline::Program program_of(const ResolvedRun& run);

/// The prediction of a schedule for the same mesh and batch.
struct SchedulePrediction {
  std::string name;
  int64_t stages_per_rank = 1;
  double step_seconds = 0;
  double bubble_share = 0;
  double peak_bytes = 0;  ///< The highest peak of any rank.
  bool fits = false;
  bool configured = false;
};

/// A part of the step's time on the busiest rank.
struct TimeShare {
  std::string name;  ///< "matmuls", "waiting for tp", "pipeline bubble"
  double seconds = 0;
};

struct PlanOptions {
  int64_t devices = 0;            ///< 0: the product of the degrees.
  bool compare_schedules = true;  ///< Fill Plan::schedules.
  PeerDesign peer = {};           ///< For plans of other systems' runs.
};

struct Plan {
  ResolvedRun run;
  Machine machine;
  PeerDesign peer;
  std::string recompute;  ///< RecomputeChoice::describe() of mode "auto", which `run.config` has replaced; else empty.
  descriptor::ModelCounts counts;
  std::string schedule;  ///< "1F1B"; "none" on one stage.
  std::vector<int64_t> rank_of_stage;
  std::vector<PlannedStage> stages;
  pipeline::Timeline timeline;
  std::vector<RankMemory> memory;  ///< By rank along pp.

  double step_seconds = 0;
  double tokens_per_second = 0;  ///< Over all devices.
  double mfu = 0;                ///< Model FLOPs utilization with causal attention counted.
  double mfu_full = 0;           ///< The same with full attention counted, as torchtitan does.
  double bubble_share = 0;
  std::vector<TimeShare> time;                   ///< Sums to step_seconds; longest first.
  std::vector<CommunicationCost> communication;  ///< Per step of the busiest rank, including pp.
  std::string bottleneck;                        ///< A sentence.

  std::vector<int64_t> layers_by_stage() const;
  size_t fullest_rank = 0;  ///< The rank along pp with the highest peak.
  double peak_bytes() const { return memory[fullest_rank].peak.total(); }
  bool fits() const { return peak_bytes() <= machine.usable_bytes(); }

  std::vector<SchedulePrediction> schedules;  ///< Best first; empty on one stage.
  std::optional<GoodputPrediction> goodput;   ///< Of machines whose device_mtbf_hours is known.
  std::vector<std::string> warnings;
};

/// Plans a run. activation_checkpoint.mode = "auto" becomes what a run chooses (train/recompute_choice.h) with the
/// usable memory of the machine's devices, which need not be CPUs. Ranks of the same pipeline stage are alike, so the
/// world size does not add to the cost of planning. Throws usage errors like resolve, build_pipeline_program and
/// measure_stage.
Plan make_plan(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const PlanOptions& options = {});

/// Returns the context of the costs of a plan, which must outlive it.
CostContext cost_context(const Plan& plan);

/// Returns predictions of all schedules that are legal for the run's mesh and batch: those that fit first, then by step
/// time. `costs` are those of the run.
std::vector<SchedulePrediction> compare_schedules(
    const ResolvedRun& run, StageCosts& costs, const CostContext& context);

}  // namespace lehr::plan
