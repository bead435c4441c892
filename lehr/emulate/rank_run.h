// One rank of an emulated run: the model, the mesh and the steps of a real one, on meta tensors.
#pragma once

#include "lehr/emulate/recording.h"
#include "lehr/mesh/transport.h"
#include "lehr/plan/plan.h"
#include "lehr/train/train_spec.h"

namespace lehr::emulate {

/// Builds the run of `plan` as rank `hosts.rank()`, with the classes that a trainer builds it from (train::TrainStep,
/// train::Pipeline, shard::FullySharded), and takes two steps over `batch`, this rank's sequences in host memory.
/// Returns the recording of the second one, when units know their prefetch order. All ranks call it together.
Recording record_step(
    const plan::Plan& plan, const train::TrainSpec& spec, const train::Batch& batch, mesh::Transport& hosts);

}  // namespace lehr::emulate
