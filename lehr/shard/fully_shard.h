// Fully sharded data parallelism: each rank keeps its part of every parameter, gradient and optimizer state, and sees
// whole parameters of a few units at a time (ZeRO, https://arxiv.org/abs/1910.02054; FSDP,
// https://arxiv.org/abs/2304.11277).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"
#include "lehr/shard/gathered_memory.h"

namespace lehr::shard {

class UnitSchedule;

/// Which units are released between forward and backward, to be gathered once more for the latter.
enum class ReshardPolicy {
  all_but_last,  ///< The unit with which forward ends is the first one that backward needs.
  always,
  never,  ///< Gathered once between finish_backward() calls; the memory of all whole parameters.
};

struct FullyShardOptions {
  at::ScalarType compute = at::kFloat;  ///< What whole parameters are sent, kept and computed in.
  at::ScalarType reduce = at::kFloat;   ///< What gradients of sharded parameters are summed in.
  ReshardPolicy reshard_after_forward = ReshardPolicy::all_but_last;
  /// False: gradients of sharded parameters stay whole on each rank, in the reduce type, until the step's last
  /// microbatch, and are summed over the ranks once: less communication, and the memory of all whole gradients.
  bool reduce_each_microbatch = true;
  int64_t bucket_bytes = 25 << 20;  ///< Of gradients that are summed over replicas: see GradientSync.
  /// CPU offload. If set, values, their gradients and what an optimizer keeps of them are in host memory; whole
  /// parameters are gathered and used, and gradients summed, on this device. Give memory by materialize_offloaded.
  std::optional<at::Device> compute_device = {};
};

/// Modules whose parameters are gathered together: a decoder layer; the final norm and the head, which are called one
/// after the other; embeddings and the head that reads their weights. The parameters are those below the modules. They
/// are whole from the call of the first of the modules until that of the last one has returned.
struct UnitModules {
  std::string name;  ///< For messages: "layers.3".
  std::vector<std::shared_ptr<nn::Module>> modules;
  /// Modules whose parameters those read without calling them: a tied table that stands beside its head.
  std::vector<std::shared_ptr<nn::Module>> read = {};
};

/// A model after fully_shard: the trainer tells it where a step stands. All ranks call everything in the same order.
///
///     sharded.begin_step();
///     for each microbatch:
///       sharded.set_last_microbatch(it is the last one);
///       forward and backward of a loss that is a sum over tokens
///       sharded.finish_backward();
///
/// Then gradients of all values are final: the sums over all ranks and microbatches.
///
/// In a pipeline several microbatches are under way at once, their backward perhaps in two halves
/// (ops/weight_gradients.h), and all of them stand between one begin_step() and one finish_backward():
/// set_last_microbatch(false) comes before the first one, set_last_microbatch(true) when no forward pass is to come.
class FullySharded {
 public:
  explicit FullySharded(std::shared_ptr<UnitSchedule> schedule, std::shared_ptr<ByteCount> count);
  ~FullySharded();
  FullySharded(FullySharded&&) noexcept;

  /// Values may have changed: nothing that was gathered is used any more. Passes without gradients need no step, but
  /// another begin_step() or reset() after values changed.
  void begin_step();
  /// Whether the step's gradients are complete after the next finish_backward(): units whose backward is done then need
  /// not wait for the others, and another forward pass through one of them is a usage error. True after begin_step().
  void set_last_microbatch(bool last);
  /// After each microbatch (or pipeline of them): gradients of sharded parameters are added to those of the values,
  /// everything gathered is released; after the last microbatch gradients are summed over replicas too. A parameter
  /// that no rank used has no gradient. No collective but those of the gradients.
  void finish_backward();
  /// After an exception, or after values were loaded. No collectives; graphs from before cannot go backward any more.
  void reset() noexcept;

  /// Lets all parameters be read outside of calls of their modules, as in `model.logits(x)`: gathers everything, until
  /// the next begin_step() or reset(). Not within a step.
  void hold();

  /// Bytes that gathered parameters take now, and took at most since `reset_peak`.
  int64_t gathered_bytes() const { return count_->now(); }
  int64_t gathered_bytes_peak() const { return count_->peak(); }
  void reset_peak() { count_->reset_peak(); }
  /// What each unit takes while it is gathered; known after its first call.
  std::vector<int64_t> unit_bytes() const;

 private:
  std::shared_ptr<ByteCount> count_;
  std::shared_ptr<UnitSchedule> schedule_;
};

/// Lays out what is left of `root`, after tensor and expert styles and before memory is allocated, and attaches itself
/// to the units' modules outside of all hooks that are there.
///
/// A parameter that nothing cut on fsdp (experts, whose layout names ep or ep_shard: on ep_shard) is cut there: along
/// dimension 0 of what other axes left, or along dimension 1 for stacked matrices (E, out, in) of fewer than ranks.
/// Then every parameter is replicated on the axes that are not named. State is replicated, and neither gathered nor
/// cast.
///
/// `units` stand in the order of forward. Every parameter of `root` but state must be in one of them, in one only, and
/// together with those that read it. Throws a usage error otherwise. With one rank on fsdp nothing is sent: parameters
/// are cast, or read as they are. Freeze parameters before. `context` must outlive the model's calls.
FullySharded fully_shard(
    mesh::DistributedContext& context,
    torch::nn::Module& root,
    const std::vector<UnitModules>& units,
    const FullyShardOptions& options);

/// nn::materialize for a model with FullyShardOptions::compute_device: values in host memory, which is pinned where
/// that device is no CPU, and state, which forward reads as it is, on the device.
void materialize_offloaded(torch::nn::Module& root, at::Device compute_device, at::ScalarType dtype);

}  // namespace lehr::shard
