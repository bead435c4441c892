// Prediction of a step: its timeline, its memory, and the breakdown of its time.
#pragma once

#include <memory>
#include <vector>

#include "lehr/pipeline/simulate.h"
#include "lehr/plan/memory.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/plan/step_clock.h"

namespace lehr::plan {

struct Plan;

/// The predicted step of one pipeline.
struct StepPrediction {
  pipeline::Timeline timeline;
  std::shared_ptr<const StepClock> clock = nullptr;  ///< Null for stages that were added up, which have no passes.
  std::vector<RankMemory> memory;                    ///< By rank along pp.
};

/// Simulates a program (with or without communication) of these stages, and accounts for its memory.
StepPrediction predict_step(
    const pipeline::Program& program, const std::vector<const PlannedStage*>& stages, const CostContext& context);

/// Fills time, communication and bottleneck of `plan`, which has step_seconds and run, from the busiest rank along pp.
/// `step` must have a clock.
void account_for_time(Plan& plan, const StepPrediction& step, const std::vector<const PlannedStage*>& stages);

}  // namespace lehr::plan
