// Every mesh of a number of devices, and every way to use one.
#pragma once

#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/config.h"

namespace lehr::plan {

/// What of a mesh decides how a layer is laid out; stages of one layout are measured once.
struct LayerLayout {
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  auto operator<=>(const LayerLayout&) const = default;
};

/// A mesh with a batch.
struct MeshPoint {
  mesh::DeviceMeshParameters mesh;
  int64_t rows = 1;          ///< Of a microbatch.
  int64_t microbatches = 1;  ///< On each rank.

  LayerLayout layout() const { return {mesh.tensor_parallel, mesh.context_parallel, mesh.expert_parallel}; }
};

/// What else is chosen that costs time or memory.
struct Trade {
  /// activation_checkpoint: "none", "full", or the selective_ac_option under "selective".
  std::string checkpointing;
  shard::ReshardPolicy reshard = shard::ReshardPolicy::all_but_last;
  auto operator<=>(const Trade&) const = default;
};

/// All meshes of `devices` that divide the batch and the rows evenly (of a pipeline at most `num_layers` ranks), for
/// each microbatch of `rows`. Experts are spread only if the model has any.
std::vector<MeshPoint> all_meshes(
    const train::TrainConfig& config,
    int64_t devices,
    int64_t num_layers,
    bool has_experts,
    const std::vector<int64_t>& rows);

/// Ways of checkpointing, those that compute less again before those that compute more, times reshard policies; one
/// policy where no weights are shared.
std::vector<Trade> all_trades(const MeshPoint& point);

/// Schedules with their stages a rank: the default of each, and twice and four times it where any number is taken, as
/// long as every stage has a layer; those that are defined for the point's numbers. On one stage: 1F1B.
std::vector<pipeline::ScheduleOptions> all_schedules_of(const MeshPoint& point, int64_t num_layers);

/// `config` with these choices.
train::TrainConfig with_choices(
    const train::TrainConfig& config,
    const MeshPoint& point,
    const Trade& trade,
    const pipeline::ScheduleOptions& schedule);

}  // namespace lehr::plan
