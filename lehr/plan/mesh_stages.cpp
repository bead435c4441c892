#include "lehr/plan/mesh_stages.h"

#include <algorithm>

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
        .rows = rows,
        .expert_parts = layout.expert_parts};
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
  planned.measured = from == other ? measured(*from) : StagePieces::mean_of(measured(*from), measured(*other));
  StagePieces::change_policy(planned.measured, trade.reshard, point.mesh.pipeline_parallel > 1);
  planned.measured.expert_tokens = tokens_of_experts(*from, point);
  planned.expert_share = planned.measured.weights.expert_share();
  planned.cost = cost_of(planned.measured, planned.expert_share, context(point, trade));
  return planned;
}

double MeshStages::tokens_of_experts(const StagePieces& from, const MeshPoint& point) const {
  return expert_tokens(from.expert_visits(), point.rows * config_.training.seq_len, point.mesh);
}

namespace {
// Without the copies of all-gathered parameters, which a mesh may do once per step, or not need at all.
ActionMeasurement without_gathers(ActionMeasurement action) {
  for (const Communication& one : action.communication) {
    if (one.collective == "all_gather" && one.axes != mesh::axis::tp) {
      action.pointwise_bytes -= bytes_of_copies(one) + one.bytes;  // with a cast
    }
  }
  action.pointwise_bytes = std::max<int64_t>(0, action.pointwise_bytes);
  return action;
}
}  // namespace

double MeshStages::least_seconds(const MeshPoint& point) {
  const auto& mesh = point.mesh;
  const LayerLayout layout{.tp = mesh.tensor_parallel, .ep = mesh.expert_parallel, .expert_parts = point.expert_parts};
  const StagePieces* from = pieces(layout, point.rows, "none", /*reduce_each=*/false);
  if (from == nullptr) {
    return kNever;
  }
  StageMeasurement all = from->stage({.layers = num_layers_}, mesh.data_parallel_shard * mesh.context_parallel, 1);
  all.expert_tokens = tokens_of_experts(*from, point);
  all.forward = without_gathers(all.forward);
  all.backward = without_gathers(all.backward);
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
  double sums = 0;
  for (const Communication& one : all.per_step) {
    if (one.collective == "reduce_scatter" && one.calls > 0) {
      const auto calls = static_cast<double>(one.calls);
      const GroupPlacement group = place_group(one.axes, mesh, machine_.ranks_per_node);
      sums += calls * collective_seconds(machine_, group, one.collective, static_cast<double>(one.bytes) / calls);
    }
  }
  const double exposed = std::max(0.0, sums - machine_.communication_overlap * cost.backward.computing() / parts);
  // The first micro-batch of a step has no gradients to add to.
  constexpr double kMargin = 0.95;
  return kMargin * (seconds * static_cast<double>(point.microbatches) + exposed) /
         static_cast<double>(mesh.pipeline_parallel);
}

}  // namespace lehr::plan
