// From what a stage computes, touches and sends to the seconds that it takes on a machine.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/simulate.h"
#include "lehr/plan/machine.h"
#include "lehr/plan/measure_stage.h"

namespace lehr::plan {

/// Collectives of one kind along some axes, with their time.
struct CommunicationCost {
  std::string axes;        ///< "tp", "dp_shard,cp"
  std::string collective;  ///< "all_gather"
  double bytes = 0;        ///< Of this rank's inputs.
  double calls = 0;
  double seconds = 0;  ///< On the links.
  double exposed = 0;  ///< Of them, those in which the rank does nothing else.
};

/// Seconds of one action of a stage on one microbatch.
struct ActionCost {
  double products = 0;   ///< Matrix products but those of experts.
  double experts = 0;    ///< Products of experts.
  double attention = 0;  ///< The core of attention.
  double pointwise = 0;  ///< Operators bound by memory.
  double overhead = 0;   ///< Fixed, a layer.
  std::vector<CommunicationCost> communication = {};

  double computing() const { return products + experts + attention + pointwise + overhead; }
  double exposed() const;
  double seconds() const { return computing() + exposed(); }
};

/// What one stage costs one rank.
struct StageCost {
  ActionCost forward;
  ActionCost backward;        ///< Whole,
  ActionCost backward_input;  ///< or in two halves.
  ActionCost backward_weight;
  double optimizer = 0;  ///< Seconds: norm and update, bound by memory.
  std::vector<CommunicationCost> per_step = {};
  double update() const;  ///< Seconds between the last backward and the next step.
};

/// What costs depend on beside the stage.
struct CostContext {
  const Machine& machine;
  mesh::DeviceMeshParameters mesh;
  at::ScalarType compute = at::kFloat;
  bool keeps_gathered = false;  ///< fsdp_reshard_after_forward = "never" in a pipeline: one gather a step.
};

/// The model, in words of docs/plan.md:
///
/// - Products take their operations over peak times achieved fraction; `expert_share` of them are experts'. Attention
/// has
///   its own fraction. Operators bound by memory take their bytes over its bandwidth.
/// - Collectives take collective_seconds. Those of whole weights and their gradients (all_gather and reduce_scatter on
///   fsdp, dp_shard, ep_shard) are issued ahead: all but the first of an action hide behind
///   Machine::communication_overlap of its computing time; so does what goes around a ring of cp. The others (tp, ep,
///   gathers of cp) are waited for, every second of them.
/// - Weights that stay gathered for a step are gathered beside its first forward.
/// - Sums over replicas hide behind the same share of one backward, that of the last microbatch.
StageCost cost_of(const StageMeasurement& stage, double expert_share, const CostContext& context);

/// The costs of all stages for the simulator: times, transfers, the longest update of a rank. Programs without halves
/// (`halves` false) have all of a backward in its input half. Bytes are left to plan/memory.h, which knows kinds.
pipeline::PipelineCosts pipeline_costs(
    const std::vector<const StageCost*>& stages,
    double boundary_bytes,
    const std::vector<int64_t>& rank_of_stage,
    bool halves,
    const CostContext& context);

/// Whether a program has input and weight halves.
bool has_halves(const pipeline::Program& program);

}  // namespace lehr::plan
