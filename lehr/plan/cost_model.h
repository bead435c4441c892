// Cost model: the seconds that a stage takes on a machine, from its FLOPs, bytes and collectives.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/simulate.h"
#include "lehr/plan/exposed.h"
#include "lehr/plan/machine.h"
#include "lehr/plan/measure_stage.h"
#include "lehr/plan/peer_design.h"

namespace lehr::plan {

/// Collectives of one kind along some axes, with their time.
struct CommunicationCost {
  std::string axes;        ///< "tp", "dp_shard,cp"
  std::string collective;  ///< "all_gather"
  double bytes = 0;        ///< Size of this rank's inputs over all calls.
  double calls = 0;
  double seconds = 0;  ///< Time on the links.
  double exposed = 0;  ///< The part of `seconds` that does not overlap with computation.
};

/// Seconds of one action of a stage on one micro-batch.
struct ActionCost {
  double matmuls = 0;    ///< Matmuls, except those of experts.
  double experts = 0;    ///< Matmuls of experts.
  double attention = 0;  ///< Core attention, without its projections.
  double pointwise = 0;  ///< Memory-bound operators.
  double overhead = 0;   ///< Fixed overhead per layer.
  double slowest = 0;    ///< Waiting for the slowest of all ranks (Machine::slowest_of).
  std::vector<CommunicationCost> communication = {};

  double computing() const { return matmuls + experts + attention + pointwise + overhead; }
  double exposed() const;
  double seconds() const { return computing() + slowest + exposed(); }
};

/// A pass of a stage in the order of its program.
struct PassCost {
  ActionCost cost = {};  ///< Without exposed time, which depends on what else the rank does (plan/step_clock.h).
  TimedPass timed = {};
  size_t border = 0;  ///< ActionMeasurement::border
};

/// The cost of one stage on one rank.
struct StageCost {
  ActionCost forward;
  ActionCost backward;                        ///< Whole backward,
  ActionCost backward_input;                  ///< or split into dgrad
  ActionCost backward_weight;                 ///< and wgrad.
  std::map<PassPlace, PassCost> passes = {};  ///< Empty for measurements that were added up.
  /// Without passes: seconds of a step's collectives between its last backward and the norm.
  double after_backward = 0;
  double optimizer = 0;  ///< Seconds of norm and update, which are memory-bound.
  double update() const { return after_backward + optimizer; }
};

/// The context of a stage's cost: machine, mesh and dtype.
struct CostContext {
  const Machine& machine;
  mesh::DeviceMeshParameters mesh;
  at::ScalarType compute = at::kFloat;
  bool float8 = false;          ///< Linear layers compute in float8 (MatmulWeights::float8_share).
  PeerDesign peer = {};         ///< Of the plans of other systems; Lehr's own by default.
  int64_t microbatches = 1;     ///< Per step, for PeerDesign::gathers_once.
  bool keeps_gathered = false;  ///< fsdp_reshard_after_forward = "never" in a pipeline: one all-gather per step.

  /// Speed of a collective while its rank computes, as a fraction of its speed on an idle device.
  double overlap() const { return machine.communication_overlap * peer.sharding_overlap; }
};

/// Returns the seconds of computation of an action of `stage`: matmuls, experts, attention and pointwise; without
/// overhead, communication and slow ranks. Of `stage`, only weights and expert_tokens are read.
ActionCost computation_of(
    const ActionMeasurement& action, const StageMeasurement& stage, double expert_share, const CostContext& context);

/// Returns the cost of a stage (docs/plan.md describes the model):
///
/// - Matmuls take their FLOPs over the peak times the achieved fraction; `expert_share` of them belong to experts. With
///   `context.float8`, those of linear layers take the time of float8, as those of experts by float8.moe_fqns.
///   Attention has its own fraction. Memory-bound operators take their bytes over the memory bandwidth.
/// - Collectives take collective_seconds. They overlap with the computation between start and wait in the order of the
///   program (plan/exposed.h); those of the actions, as if nothing else were in flight.
///
/// Measurements that were added up (plan/stage_pieces.h) have no order. Of them, collectives of parameters and their
/// gradients (all_gather and reduce_scatter on fsdp, dp_shard, ep_shard) and messages overlap with
/// Machine::communication_overlap of an action's compute time, all but the first; all-reduces over replicas with that
/// of one backward. The others are exposed.
StageCost cost_of(const StageMeasurement& stage, double expert_share, const CostContext& context);

/// Returns the costs of all stages for the simulator: times, transfers, and the longest update of any rank; no clock.
/// For programs without split backwards (`splits_backward` false) the whole backward counts as backward_input. Bytes
/// are left to plan/memory.h, which accounts for them by kind.
pipeline::PipelineCosts pipeline_costs(
    const std::vector<const StageCost*>& stages,
    double boundary_bytes,
    const std::vector<int64_t>& rank_of_stage,
    bool splits_backward,
    const CostContext& context);

/// Returns whether a program splits backwards into backward_input and backward_weight.
bool has_split_backward(const pipeline::Program& program);

}  // namespace lehr::plan
