// The peak of a run on one device, for the report at its start.
#pragma once

#include <cstdint>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// The most bytes that tensors of a run on one device take at one time in a training step (a save takes a copy of what
/// it writes beside, a validation what its own batches need): what a plan of it says, without the plan around it. Some
/// ten milliseconds, and more with the number of layers. Throws as measure_stage.
int64_t peak_on_one_device(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args);

}  // namespace lehr::plan
