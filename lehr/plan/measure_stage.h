// What one stage of a model costs one rank, measured without a device: the stage that a run would build is built, laid
// out, and run on meta tensors. Nothing is computed, but autograd keeps what it keeps in a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Collectives of one kind among the ranks along some axes.
struct Communication {
  std::string axes;        ///< As mesh::Group::name(): "tp", "dp_shard,cp".
  std::string collective;  ///< As mesh::FakeCollective::name: "all_gather", "reduce_scatter", "all_to_all", "send", ...
  int64_t group_size = 1;  ///< Ranks.
  /// Of this rank's inputs, over all calls: its part for all_gather, the whole tensor for the others.
  int64_t bytes = 0;
  int64_t calls = 0;
};

/// One action of a pipeline, for one microbatch, on this rank.
struct ActionMeasurement {
  /// Bytes: the highest point of live memory during the action beyond StageMeasurement::at_rest() (without the
  /// optimizer's part), whole gradients, and what is kept of other microbatches. What is kept of its own is in it, and
  /// gathered parameters are.
  int64_t peak = 0;
  /// Bytes that stay afterwards for this microbatch, for its backward or its weight half, without gathered parameters.
  int64_t kept = 0;
  double product_flops = 0;    ///< Of matrix products; two for each multiplication and addition.
  double attention_flops = 0;  ///< Of scores and weighted values; where order is causal, of the keys that are seen.
  /// Of product_flops + attention_flops: what activation checkpointing computes once more.
  double recomputed_flops = 0;
  /// Bytes that operators other than these read and write: norms, activations, sums, copies, casts, losses.
  int64_t pointwise_bytes = 0;
  std::vector<Communication> communication = {};

  double flops() const { return product_flops + attention_flops; }
};

/// One rank's part of one stage.
struct StageMeasurement {
  int64_t num_layers = 0;
  int64_t parameters = 0;  ///< Elements of this stage over all ranks (but pp); tied copies are left out.

  /// @name At rest, in bytes: this rank's boxes
  /// @{
  int64_t parameter_bytes = 0;
  int64_t compute_copy_bytes = 0;  ///< On one device in mixed precision: the parameters in the type of forward.
  int64_t gradient_bytes = 0;      ///< From the first backward of a step to its end.
  /// Beside them until the last backward of a step of several microbatches: gradients that are summed over the ranks
  /// once a step are whole until then (parallelism.fsdp_reduce_each_microbatch = false).
  int64_t whole_gradient_bytes = 0;
  int64_t optimizer_bytes = 0;  ///< Of moments, but not what an update takes for a while.
  int64_t other_bytes = 0;      ///< Of modules: counts and the last routing of experts.
  int64_t at_rest() const {
    return parameter_bytes + compute_copy_bytes + gradient_bytes + optimizer_bytes + other_bytes;
  }
  /// @}

  /// @name Fully sharded: bytes of parameters that are whole for a while
  /// @{
  int64_t gathered_peak = 0;           ///< At most; in `peak` of the actions.
  int64_t gathered_after_forward = 0;  ///< Stay, once for the stage, whatever the number of microbatches.
  /// @}

  int64_t batch_bytes = 0;     ///< Of a microbatch's ids, labels and positions; not in `kept`.
  int64_t boundary_bytes = 0;  ///< From this stage to the next for one microbatch, and as much back; 0 for the last.

  /// As in the middle of a step: gradients of earlier microbatches are at rest, and more microbatches are to come.
  ActionMeasurement forward;
  ActionMeasurement backward;         ///< Whole, as in 1F1B,
  ActionMeasurement backward_input;   ///< or in two halves,
  ActionMeasurement backward_weight;  ///< as in schedules without bubbles.

  /// @name Whole backwards at the ends of a step
  /// Peaks as ActionMeasurement::peak. Without earlier gradients those that come are in it, so it goes beyond at_rest()
  /// without gradient_bytes. With the last one sums of gradients over replicas begin.
  /// @{
  int64_t first_backward_peak = 0;
  int64_t last_backward_peak = 0;
  int64_t only_backward_peak = 0;  ///< Of a step of one microbatch: first and last; without earlier gradients.
  /// @}

  /// Once a step, beside the last microbatch: sums of gradients over replicas, tied tables.
  std::vector<Communication> per_step = {};
};

/// Where a stage stands.
struct StagePlace {
  int64_t stage = 0;
  /// The rank along pp of every stage (pipeline::Program::rank_of_stage).
  std::vector<int64_t> rank_of_stage = {0};
  /// Of all ranks; 0 for the product of the config's degrees, with which data_parallel_shard_degree = -1 is one.
  int64_t world_size = 0;
};

/// Measures a microbatch of train::microbatch_rows(config) rows of training.seq_len tokens, all in one document and all
/// with a label, tokens spread evenly over experts. The rank is the first one of its stage. `args` is the shape of the
/// whole model (Builders::model_args). Throws the usage errors that the run itself would throw when it builds the
/// model; call train::check_mesh before for those of config and mesh. No device, no communication; milliseconds a
/// layer.
StageMeasurement measure_stage(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place = {});

}  // namespace lehr::plan
