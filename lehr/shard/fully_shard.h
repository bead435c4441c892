// Fully sharded data parallelism (FSDP): each rank keeps its shard of every parameter, gradient and optimizer state,
// and a few units at a time are unsharded for use (ZeRO, https://arxiv.org/abs/1910.02054; FSDP,
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

class FsdpSchedule;

/// The units that are resharded after forward, and unsharded a second time for backward.
enum class ReshardPolicy {
  all_but_last,  ///< All units but the last one of forward, which backward needs first.
  always,        ///< All units (ZeRO-3).
  never,  ///< Each unit is unsharded once between finish_backward() calls: needs memory for all whole parameters.
};

/// Options of fully_shard.
struct FullyShardOptions {
  at::ScalarType compute = at::kFloat;  ///< Type in which parameters are all-gathered, kept whole and computed with.
  at::ScalarType reduce = at::kFloat;   ///< Type in which gradients of sharded parameters are reduce-scattered.
  ReshardPolicy reshard_after_forward = ReshardPolicy::all_but_last;
  /// False: gradients of sharded parameters stay whole on each rank, in the reduce type, until the step's last
  /// micro-batch, and are reduce-scattered once (FSDP2's set_requires_gradient_sync): less communication, but memory
  /// for all whole gradients. These
  /// reduce-scatters are waited for in finish_backward(), unless their results go on to replicas or to the host, or the
  /// transport copies their inputs (mesh::Transport::copies_reductions).
  bool reduce_each_microbatch = true;
  int64_t bucket_bytes = 25 << 20;  ///< Bucket size for gradients that are summed over replicas: see GradientSync.
  /// CPU offload. If set, shards, their gradients and their optimizer state are in host memory. Parameters are
  /// unsharded and used, and gradients summed, on this device. Allocate the shards with materialize_offloaded.
  std::optional<at::Device> compute_device = {};
};

/// An FSDP unit: modules whose parameters are unsharded together. Examples are a decoder layer; the final norm and the
/// head, which are called one after the other; embeddings and a head that is tied to them. The unit owns all parameters
/// below its modules. They are whole from the call of the first module until the call of the last one has returned.
struct UnitModules {
  std::string name;  ///< For messages: "layers.3".
  std::vector<std::shared_ptr<nn::Module>> modules;
  /// Modules whose parameters `modules` read without calling them, such as a tied embedding table.
  std::vector<std::shared_ptr<nn::Module>> read = {};
};

/// Handle of a model after fully_shard: the trainer calls it between steps and micro-batches. All ranks make all calls
/// in the same order.
///
///     sharded.begin_step();
///     for each microbatch:
///       sharded.set_last_microbatch(it is the last one);
///       forward and backward of a loss that is a sum over tokens
///       sharded.finish_backward();
///
/// Afterwards the gradients of all shards are final: the sums over all ranks and micro-batches.
///
/// In a pipeline several micro-batches are in flight at once, possibly with dgrad and wgrad run apart
/// (ops/weight_gradients.h). All of them run between one begin_step() and one finish_backward(): call
/// set_last_microbatch(false) before the first one, and set_last_microbatch(true) after the last forward pass.
class FullySharded {
 public:
  explicit FullySharded(std::shared_ptr<FsdpSchedule> schedule, std::shared_ptr<ByteCount> count);
  ~FullySharded();
  FullySharded(FullySharded&&) noexcept;

  /// Starts a step. Reshards all units, since values may have changed, and starts the all-gathers of those that the
  /// first forward uses: of all units under ReshardPolicy::never, else of the first one. These read values now, so
  /// values must not change from here to finish_backward(); call reset() if they do. Passes without gradients need no
  /// step, but call begin_step() or reset() after values change.
  void begin_step();
  /// States whether the step's gradients are complete after the next finish_backward(). If so, a unit whose backward
  /// has ended synchronizes its gradients immediately, and a further forward pass through it is a usage error. True
  /// after begin_step().
  void set_last_microbatch(bool last);
  /// Returns whether the reductions of the last micro-batch are waited for together in finish_backward(). Until then
  /// their buffers have the memory of the whole gradients.
  bool reductions_end_step() const;
  /// Call after each micro-batch (or pipeline of them). Adds gradients of sharded parameters to those of the shards and
  /// reshards all units; after the last micro-batch also sums gradients over replicas. A parameter that no rank used
  /// has no gradient. Runs no collectives but those of gradients.
  void finish_backward();
  /// Call after an exception, or after values were loaded. Runs no collectives. Graphs that were built before cannot
  /// run backward any more.
  void reset() noexcept;

  /// Unshards all units until the next begin_step() or reset(), so that parameters can be read outside of calls of
  /// their modules, as `model.logits(x)` does (FSDP's summon_full_params). Not within a step.
  void unshard_all();

  /// Bytes of unsharded parameters and all-gather buffers now, and their peak since `reset_peak`.
  int64_t gathered_bytes() const { return count_->now(); }
  int64_t gathered_bytes_peak() const { return count_->peak(); }
  void reset_peak() { count_->reset_peak(); }
  /// Bytes of each unit while it is unsharded; known after its first call.
  std::vector<int64_t> unit_bytes() const;

 private:
  std::shared_ptr<ByteCount> count_;
  std::shared_ptr<FsdpSchedule> schedule_;
};

/// Shards `root` over axis fsdp, and attaches call hooks to the units' modules, outside of all hooks that they have.
/// Call it after tensor and expert parallelism were applied, and before memory is allocated.
///
/// Every parameter that is not sharded on fsdp yet is sharded there. Experts, whose layout names ep or ep_shard, are
/// sharded on ep_shard instead. The dimension is 0 of the shard that other axes left, or 1 for stacked matrices
/// (E, out, in) with E below the number of ranks. Then every parameter is replicated on the axes that its layout does
/// not name. State is replicated, and neither all-gathered nor cast.
///
/// `units` are in the order of forward. Every parameter of `root` but state must be in exactly one of them, the same as
/// that of the modules that read it. Throws a usage error otherwise. With one rank on fsdp nothing is sent: parameters
/// are cast, or read in place. Freeze parameters before. `context` must outlive the model's calls.
FullySharded fully_shard(
    mesh::DistributedContext& context,
    torch::nn::Module& root,
    const std::vector<UnitModules>& units,
    const FullyShardOptions& options);

/// nn::materialize for a model with FullyShardOptions::compute_device. Allocates shards in host memory, pinned if the
/// device is not a CPU, and state, which forward reads in place, on the device.
void materialize_offloaded(torch::nn::Module& root, at::Device compute_device, at::ScalarType dtype);

}  // namespace lehr::shard
