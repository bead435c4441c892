// Measurement of one stage on one rank without a device: the stage is built and laid out as in a run, and run on meta
// tensors. Nothing is computed, but autograd saves the same tensors as in a run.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/plan/stage_measurement.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Measures a micro-batch of train::microbatch_rows(config) sequences of training.seq_len tokens, each a single
/// document with a label for every token, and tokens spread evenly over experts. The rank is the first one of its
/// stage. `args` is the shape of the whole model (Builders::model_args). Throws the usage errors that the run itself
/// would throw when it builds the model; call train::check_mesh before for errors of config and mesh. Needs no device
/// and no communication; takes milliseconds per layer.
StageMeasurement measure_stage(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place = {});

}  // namespace lehr::plan
