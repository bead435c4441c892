// Search space of a plan: all meshes of a number of devices, and all choices for one mesh.
#pragma once

#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/config.h"

namespace lehr::plan {

/// The degrees that determine the layout of a layer. Stages of one layout are measured once.
struct LayerLayout {
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t expert_parts = 1;
  auto operator<=>(const LayerLayout&) const = default;
};

/// A mesh and its batch.
struct MeshPoint {
  mesh::DeviceMeshParameters mesh;
  int64_t rows = 1;          ///< Sequences per micro-batch.
  int64_t microbatches = 1;  ///< Per step, on each rank.
  int64_t expert_parts = 1;  ///< parallelism.expert_parallel_parts

  LayerLayout layout() const {
    return {mesh.tensor_parallel, mesh.context_parallel, mesh.expert_parallel, expert_parts};
  }
};

/// Further choices that trade time against memory.
struct Trade {
  /// activation_checkpoint: "none", "full", or the selective_ac_option under "selective".
  std::string checkpointing;
  shard::ReshardPolicy reshard = shard::ReshardPolicy::all_but_last;
  bool reduce_each = true;  ///< parallelism.fsdp_reduce_each_microbatch
  auto operator<=>(const Trade&) const = default;
};

/// Returns all meshes of `devices` that divide batch and sequences evenly (with at most `num_layers` pipeline ranks),
/// for each micro-batch size of `rows`. Expert parallelism is tried only if the model has experts; a rank's experts are
/// computed in the config's number of parts, or in the largest divisor of it that divides them.
std::vector<MeshPoint> all_meshes(
    const train::TrainConfig& config,
    int64_t devices,
    int64_t num_layers,
    int64_t num_experts,
    const std::vector<int64_t>& rows);

/// Returns all kinds of activation checkpointing, least recomputation first, times reshard policies, times reductions
/// of gradients (once per step first, which is at least as fast); one policy if parameters are not sharded, and one
/// reduction if there is one micro-batch.
std::vector<Trade> all_trades(const MeshPoint& point);

/// Returns schedules with their stages per rank: the default of each, and two, three, four and six times it if the
/// schedule takes any number and every stage has a layer. Only schedules defined for the point's numbers; with one
/// stage: 1F1B.
std::vector<pipeline::ScheduleOptions> all_schedules_of(const MeshPoint& point, int64_t num_layers);

/// Returns `config` with these choices.
train::TrainConfig with_choices(
    const train::TrainConfig& config,
    const MeshPoint& point,
    const Trade& trade,
    const pipeline::ScheduleOptions& schedule);

}  // namespace lehr::plan
