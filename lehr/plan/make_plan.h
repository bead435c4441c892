// Prediction of a training run from its config alone: time, memory, bubble and communication.
#pragma once

#include <functional>
#include <vector>

#include "lehr/plan/plan.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Called after each part of the planning: "meshes", 3 of 20.
using PlanProgress = std::function<void(const std::string& what, int64_t done, int64_t all)>;

/// Options of make_plan.
struct PlanOptions {
  int64_t devices = 0;            ///< 0: the product of the degrees.
  bool compare_schedules = true;  ///< Fill Plan::schedules.
  PeerDesign peer = {};           ///< For plans of other systems' runs.
  PlanProgress progress = {};
};

/// Plans a run. activation_checkpoint.mode = "auto" is replaced by the choice of a run (train/recompute_choice.h) with
/// the usable memory of the machine's devices, which need not be CPUs. Ranks of the same pipeline stage are alike, so
/// the world size does not add to the cost of planning. Throws usage errors like resolve, build_pipeline_program and
/// measure_stage.
Plan make_plan(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const PlanOptions& options = {});

/// Returns the context of the costs of `plan`, which must outlive the result.
CostContext cost_context(const Plan& plan);

/// Returns predictions of all schedules that are legal for the run's mesh and batch: those that fit first, then by step
/// time. `costs` are those of the run.
std::vector<SchedulePrediction> compare_schedules(
    const ResolvedRun& run, StageCosts& costs, const CostContext& context, const PlanProgress& progress = {});

}  // namespace lehr::plan
