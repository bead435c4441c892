// The model of a run, on meta: whole or in pipeline stages, laid out on the mesh.
#pragma once

#include <optional>

#include "lehr/train/run.h"
#include "lehr/train/stage_layout.h"

namespace lehr::train {

/// The pipeline program and the stages of a run; nothing with one stage. Throws usage errors as build_pipeline_program
/// and lay_out_stages do.
std::optional<StagePlan> plan_stages(const Run& run);

/// Sets `run.model`, and `sharded`, `pipeline` and `whole` as the mesh requires. `stages` is the result of
/// plan_stages().
void build_model_on_mesh(Run& run, const std::optional<StagePlan>& stages);

/// Sets `run.optimizer`. Patterns of parameter names are checked against all stages, so that every rank reports the
/// same error.
void build_run_optimizer(Run& run, const std::optional<StagePlan>& stages);

}  // namespace lehr::train
