// Construction of a run's model before memory is allocated: adapters are attached, and it is laid out on the mesh.
#pragma once

#include <optional>

#include "lehr/shard/fully_shard.h"
#include "lehr/train/train_spec.h"

namespace lehr::train {

/// Builds the model as one stage, with the adapters and the frozen parameters of config.peft. Throws a usage error for
/// adapters that checkpoints cannot hold, if the run writes checkpoints.
std::shared_ptr<nn::Model> build_with_adapters(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build);

/// The same, with the float8 layers of config.float8 too.
std::shared_ptr<nn::Model> build_whole_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build);

/// Lays a stage on meta out on the mesh and checks the plan. `compute_device` is that of FullyShardOptions. Throws a
/// usage error for a family that cannot be parallelized, and for a wrong plan (shard/plan_check.h).
shard::FullySharded lay_out_stage(
    const TrainConfig& config,
    const TrainSpec& spec,
    mesh::DistributedContext& context,
    nn::Model& model,
    const pipeline::PipelineStageInfo& stage,
    std::optional<at::Device> compute_device = {});

}  // namespace lehr::train
