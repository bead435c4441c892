// Measurements of one stage on one rank: memory, FLOPs and collectives of each action.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lehr/meter/operation_meter.h"
#include "lehr/plan/pass_order.h"

namespace lehr::plan {

/// Collectives of one kind among the ranks along some axes.
struct Communication {
  std::string axes;  ///< As mesh::Group::name(): "tp", "dp_shard,cp".
  /// A name of mesh::FakeCollective: "all_gather", "reduce_scatter", "all_to_all", "send", ...
  std::string collective;
  int64_t group_size = 1;  ///< Ranks.
  /// Bytes of this rank's inputs over all calls: its shard for all_gather, the whole tensor for the others.
  int64_t bytes = 0;
  int64_t calls = 0;
};

/// The work between two calls of an action, and the call that follows it.
struct ActionEvent {
  static constexpr int64_t kNone = -1;
  OperationCounts work = {};
  int64_t started = kNone;  ///< Index in ActionMeasurement::calls of the collective that is started then,
  int64_t waited = kNone;   ///< or of the one whose result is waited for.
};

/// One action of a pipeline, for one micro-batch, on this rank.
struct ActionMeasurement {
  /// Peak of live bytes during the action, beyond StageMeasurement::at_rest() (without the optimizer's part), unreduced
  /// gradients, and activations of other micro-batches. It includes this micro-batch's activations and unsharded
  /// parameters.
  int64_t peak = 0;
  /// Bytes kept for this micro-batch after the action, for its backward or wgrad, without unsharded parameters.
  int64_t kept = 0;
  double matmul_flops = 0;     ///< FLOPs of matmuls; a multiply-add counts as two.
  double attention_flops = 0;  ///< FLOPs of scores and weighted values; with a causal mask, of the visible keys only.
  /// The part of matmul_flops + attention_flops that activation checkpointing recomputes.
  double recomputed_flops = 0;
  /// Bytes that all other operators read and write: norms, activation functions, sums, copies, casts, losses.
  int64_t pointwise_bytes = 0;
  std::vector<Communication> communication = {};  ///< Sums by axes and kind.

  /// @name The same in the order of the program; empty for sums of measurements
  /// @{
  std::vector<ActionEvent> events = {};
  /// Each with one call: those that events start, and then those of earlier actions that events wait for.
  std::vector<Communication> calls = {};
  /// The number of events before another action may run: of a step's first forward, those of the step's begin; of its
  /// last backward, those until the end of the micro-batch.
  size_t border = 0;
  /// @}

  double flops() const { return matmul_flops + attention_flops; }
};

/// Numbers of weights over all ranks, to which FLOPs of matmuls are proportional.
struct MatmulWeights {
  double active = 0;          ///< Weights that a token uses, without embeddings.
  double active_experts = 0;  ///< Those of them in MoE layers.
  double linear = 0;          ///< Weights of linear layers outside of MoE layers.
  /// Those of them in float8. Without float8.enable, those that can be: all but heads and routers (nn/float8.h).
  double linear_float8 = 0;
  /// Those of active_experts in float8: experts (float8.moe_fqns), and linear layers of shared experts.
  double active_experts_float8 = 0;

  /// @name Fractions of FLOPs; 0 without such FLOPs
  /// @{
  double expert_share() const { return active > 0 ? std::min(1.0, active_experts / active) : 0; }
  double float8_share() const { return linear > 0 ? linear_float8 / linear : 0; }  ///< Of linear layers.
  double float8_expert_share() const { return active_experts > 0 ? active_experts_float8 / active_experts : 0; }
  /// @}
};

/// The measurement of one stage on one rank.
struct StageMeasurement {
  int64_t num_layers = 0;
  int64_t num_expert_layers = 0;  ///< Those with experts.
  int64_t parameters = 0;         ///< Elements of this stage over all ranks (except pp); tied copies do not count.

  MatmulWeights weights = {};
  double expert_tokens = 0;  ///< Tokens that each expert of this rank has in a micro-batch; 0 without experts.

  /// @name At rest, in bytes of this rank's shards
  /// @{
  int64_t parameter_bytes = 0;
  int64_t trained_bytes = 0;       ///< Those of trainable parameters; with adapters the base is frozen.
  int64_t compute_copy_bytes = 0;  ///< On one device in mixed precision: the parameters in the compute dtype.
  int64_t gradient_bytes = 0;      ///< From the first backward of a step to its end.
  /// Additional bytes until the last backward of a step of several micro-batches: gradients that are reduced once per
  /// step stay unreduced until then (parallelism.fsdp_reduce_each_microbatch = false).
  int64_t whole_gradient_bytes = 0;
  /// Whether these bytes are held until the rank has carried out all actions of the step, and not only until the
  /// stage's last backward: reductions are waited for there (FullyShardOptions::reduce_each_microbatch).
  bool reductions_end_step = false;
  int64_t optimizer_bytes = 0;  ///< Optimizer state, without temporaries of an update.
  int64_t other_bytes = 0;      ///< Buffers of modules: counts and the last routing of experts.
  int64_t at_rest() const {
    return parameter_bytes + compute_copy_bytes + gradient_bytes + optimizer_bytes + other_bytes;
  }
  /// The bytes that a checkpoint holds of this rank, of a whole model or of adapters.
  int64_t saved_bytes(bool adapters) const { return (adapters ? trained_bytes : parameter_bytes) + optimizer_bytes; }
  /// @}

  /// @name Fully sharded: bytes of unsharded parameters
  /// @{
  int64_t gathered_peak = 0;  ///< Peak; included in `peak` of the actions.
  /// Bytes that stay after forward, once per stage for any number of micro-batches.
  int64_t gathered_after_forward = 0;
  /// @}

  int64_t batch_bytes = 0;     ///< A micro-batch's ids, labels and positions; not included in `kept`.
  int64_t boundary_bytes = 0;  ///< Sent to the next stage per micro-batch, and as much back; 0 for the last stage.

  /// Actions in the middle of a step: gradients of earlier micro-batches exist, and more micro-batches follow.
  ActionMeasurement forward;
  ActionMeasurement backward;         ///< Whole, as in 1F1B,
  ActionMeasurement backward_input;   ///< or split into dgrad
  ActionMeasurement backward_weight;  ///< and wgrad, as in zero-bubble schedules.

  /// @name Whole backwards at the start and end of a step
  /// Peaks as ActionMeasurement::peak. The first backward allocates the gradients, which its peak includes, so it
  /// counts beyond at_rest() without gradient_bytes. During the last one, gradient reductions over replicas begin.
  /// @{
  int64_t first_backward_peak = 0;
  int64_t last_backward_peak = 0;
  int64_t only_backward_peak = 0;  ///< Backward of a step of one micro-batch: both first and last.
  /// @}

  /// Passes by their place in the step: a step's first forward with the step's begin, and its last backward or wgrad
  /// with what follows it before the norm of the gradients. Empty for sums of measurements, and without
  /// StagePlace::with_passes.
  std::map<PassPlace, ActionMeasurement> passes = {};
  /// Collectives once per step, during the last micro-batch: gradient reductions over replicas, and tied tables.
  std::vector<Communication> per_step = {};
};

/// The position of a stage in the pipeline.
struct StagePlace {
  int64_t stage = 0;
  /// The rank along pp of every stage, as pipeline::Program::rank_of_stage.
  std::vector<int64_t> rank_of_stage = {0};
  /// Number of ranks; 0: the product of the config's degrees, counting data_parallel_shard_degree = -1 as 1.
  int64_t world_size = 0;
  /// Whether to measure StageMeasurement::passes, which takes a pipeline's stage three times as long.
  bool with_passes = true;
};

}  // namespace lehr::plan
