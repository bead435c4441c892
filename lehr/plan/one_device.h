// Predicted peak memory of a run on one device, printed at its start.
#pragma once

#include <cstdint>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns the peak bytes of tensors in a training step of a run on one device, as a plan predicts it, without the rest
/// of a plan. A checkpoint save adds a copy of the data it writes, a validation the memory of its own batches. Takes
/// some ten milliseconds, more with the number of layers. Throws like measure_stage.
int64_t peak_on_one_device(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args);

}  // namespace lehr::plan
