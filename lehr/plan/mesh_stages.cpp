#include "lehr/plan/mesh_stages.h"

#include <algorithm>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/plan/experts.h"
#include "lehr/plan/links.h"
#include "lehr/train/precision.h"

namespace lehr::plan {

MeshStages::MeshStages(const train::TrainConfig& config, const train::TrainSpec& spec, const Machine& machine)
    : config_(config), spec_(spec), machine_(machine), compute_(train::compute_type(config.training)) {}

CostContext MeshStages::context(const MeshPoint& point, const Trade& trade) const {
  return {
      .machine = machine_,
      .mesh = point.mesh,
      .compute = compute_,
      .float8 = config_.float8.enable,
      .keeps_gathered = point.mesh.pipeline_parallel > 1 && trade.reshard == shard::ReshardPolicy::never};
}

namespace {
// Returns the checkpointing of two neighbouring layers. A stage is the mean of one stage with each.
std::pair<std::string, std::string> of_two_layers(const std::string& checkpointing) {
  if (checkpointing == "op 2") {
    return {"none", "op"};
  }
  return checkpointing == "2" ? std::pair<std::string, std::string>{"none", "full"}
                              : std::pair{checkpointing, checkpointing};
}
}  // namespace

// Returns null if the model cannot be laid out in this way.
const StagePieces* MeshStages::pieces(
    const LayerLayout& layout, int64_t rows, const std::string& checkpointing, bool reduce_each) {
  const auto [entry, is_new] = pieces_.try_emplace({layout, rows, checkpointing, reduce_each});
  if (is_new) {
    const MeshPoint point{
        .mesh = {.context_parallel = layout.cp, .tensor_parallel = layout.tp, .expert_parallel = layout.ep},
        .rows = rows};
    const Trade trade{.checkpointing = checkpointing, .reduce_each = reduce_each};
    try {
      entry->second = std::make_unique<StagePieces>(with_choices(config_, point, trade, {}), spec_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) {
        throw;
      }
      why_not = error.what();
    }
  }
  return entry->second.get();
}

std::optional<PlannedStage> MeshStages::stage(const MeshPoint& point, const Trade& trade, const StageShape& shape) {
  const auto measured = [&](const StagePieces& from) {
    return from.stage(
        shape, point.mesh.data_parallel_shard * point.mesh.context_parallel, point.mesh.data_parallel_replicate);
  };
  const auto [one, next] = of_two_layers(trade.checkpointing);
  const StagePieces* from = pieces(point.layout(), point.rows, one, trade.reduce_each);
  const StagePieces* other = pieces(point.layout(), point.rows, next, trade.reduce_each);
  if (from == nullptr || other == nullptr) {
    return std::nullopt;
  }
  PlannedStage planned;
  planned.measured = from == other ? measured(*from) : StagePieces::half_and_half(measured(*from), measured(*other));
  StagePieces::change_policy(planned.measured, trade.reshard, point.mesh.pipeline_parallel > 1);
  planned.measured.expert_tokens = tokens_of_experts(*from, point);
  planned.expert_share = planned.measured.weights.expert_share();
  planned.cost = cost_of(planned.measured, planned.expert_share, context(point, trade));
  return planned;
}

double MeshStages::tokens_of_experts(const StagePieces& from, const MeshPoint& point) const {
  return expert_tokens(from.expert_visits(), point.rows * config_.training.seq_len, point.mesh);
}

double MeshStages::least_seconds(const MeshPoint& point) {
  const auto& mesh = point.mesh;
  const StagePieces* from = pieces({.tp = mesh.tensor_parallel}, point.rows, "none", /*reduce_each=*/true);
  if (from == nullptr) {
    return kNever;
  }
  StageMeasurement all = from->stage({.layers = num_layers_}, mesh.data_parallel_shard * mesh.context_parallel, 1);
  all.expert_tokens = tokens_of_experts(*from, point);
  const StageCost cost = cost_of(all, all.weights.expert_share(), context(point, {}));
  const auto parts = static_cast<double>(mesh.context_parallel);
  double seconds = 0;
  // Context parallelism divides computation and tp communication. Other exposed communication is left out of the bound.
  for (const ActionCost* action : {&cost.forward, &cost.backward}) {
    seconds += (action->computing() - action->overhead) / parts;
    for (const CommunicationCost& one : action->communication) {
      seconds += one.axes == mesh::axis::tp ? one.exposed / parts : 0;
    }
  }
  // Each rank reduces 1 / ep of the experts' gradients, at least once per step.
  double sums = 0;
  for (const Communication& one : all.backward.communication) {
    if (one.collective == "reduce_scatter" && one.axes != mesh::axis::tp && one.calls > 0) {
      const auto calls = static_cast<double>(one.calls);
      const double bytes = static_cast<double>(one.bytes) / static_cast<double>(mesh.expert_parallel) / calls;
      double least = kNever;
      for (const std::string& axis : {mesh::axis::fsdp, mesh::axis::ep_shard}) {
        const GroupPlacement group = place_group(axis, mesh, machine_.ranks_per_node);
        least = std::min(least, calls * collective_seconds(machine_, group, one.collective, bytes));
      }
      sums += least;
    }
  }
  const double exposed = std::max(0.0, sums - machine_.communication_overlap * cost.backward.computing() / parts);
  return (seconds * static_cast<double>(point.microbatches) + exposed) / static_cast<double>(mesh.pipeline_parallel);
}

}  // namespace lehr::plan
