// A model as a run has it before memory is allocated: with adapters, and laid out on the mesh.
#pragma once

#include <optional>

#include "lehr/shard/fully_shard.h"
#include "lehr/train/train_spec.h"

namespace lehr::train {

/// The model in one stage, with the adapters of config.peft and the linear layers of config.float8.
std::shared_ptr<nn::Model> build_whole_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build);

/// Lays a stage on meta out on the mesh and judges the plan. `compute_device`: that of FullyShardOptions. Throws usage
/// errors: a family that does not say how, a plan that is wrong (shard/plan_check.h).
shard::FullySharded lay_out_stage(
    const TrainConfig& config,
    const TrainSpec& spec,
    mesh::DistributedContext& context,
    nn::Model& model,
    const pipeline::PipelineStageInfo& stage,
    std::optional<at::Device> compute_device = {});

}  // namespace lehr::train
