// Prediction of a step: its timeline, its memory, and the breakdown of its time.
#pragma once

#include <vector>

#include "lehr/pipeline/simulate.h"
#include "lehr/plan/memory.h"
#include "lehr/plan/stage_costs.h"

namespace lehr::plan {

struct Plan;

struct StepPrediction {
  pipeline::Timeline timeline;
  std::vector<RankMemory> memory;  ///< By rank along pp.
};

/// Simulates a program (with or without communication) of these stages, and accounts for its memory.
StepPrediction predict_step(
    const pipeline::Program& program, const std::vector<const PlannedStage*>& stages, const CostContext& context);

/// Fills time, communication and bottleneck of `plan`, which has step_seconds and run, from the busiest rank along pp.
void account_for_time(Plan& plan, const StepPrediction& step, const std::vector<const PlannedStage*>& stages);

}  // namespace lehr::plan
