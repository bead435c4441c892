// Predicted memory and recomputed work of a training step, before a run is built.
#pragma once

#include <cstdint>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/recompute_choice.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns the forecast of a run on `world_size` ranks, as a plan predicts it, without the rest of a plan. A validation
/// adds the memory of its own batches. global_batch_size must be a number. Takes tens of milliseconds, more with the
/// number of layers. Throws like measure_stage.
train::StepForecast forecast_step(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    int64_t world_size);

}  // namespace lehr::plan
