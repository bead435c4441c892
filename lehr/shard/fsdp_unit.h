// An FSDP unit: parameters that are unsharded, shown to forward, resharded, and whose gradients are reduce-scattered,
// together.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"
#include "lehr/shard/flat_shards.h"
#include "lehr/shard/gathered_memory.h"

namespace lehr::shard {

/// The parameters of one unit. Layout and type of a parameter decide in which of three ways it is shown to forward:
/// all-gathered from the ranks that hold its shards; cast to the compute type; or the value itself, without memory or
/// copy.
class FsdpUnit {
 public:
  /// Parameters must be laid out. With `compute_device`, values stay in host memory and whole parameters are on that
  /// device, so no value is shown in place. All ranks must construct the units of a model in the same order, since the
  /// constructor creates process groups.
  FsdpUnit(
      std::string name,
      std::vector<nn::ParameterPtr> parameters,
      mesh::DistributedContext& context,
      at::ScalarType compute,
      at::ScalarType reduce,
      ByteCount& count,
      std::optional<at::Device> compute_device = {});

  const std::string& name() const { return name_; }
  const std::vector<nn::ParameterPtr>& parameters() const { return parameters_; }
  std::vector<nn::ParameterPtr> trainable() const;

  /// Returns whether any parameter is all-gathered or cast.
  bool has_memory() const;
  bool gathered() const { return memory_ && memory_->allocated(); }
  bool gathering() const { return gathering_; }
  /// Bytes of the whole parameters while the unit is unsharded. The receive buffer of an all-gather has its own size
  /// (FlatShards::bytes), which is larger if shards are uneven.
  int64_t bytes() const { return memory_ ? memory_->bytes() : 0; }

  /// Reads types and device from the parameters, once these have memory. From then on slots show the compute type, also
  /// while the unit is resharded. Throws a usage error if the parameters have no memory yet.
  void prepare();
  /// Starts the all-gathers (prefetch). Does nothing if they run, or if the unit is unsharded. Throws a usage error if
  /// the parameters have no memory yet.
  void start_unshard();
  /// Unshards: starts the all-gathers unless they run, waits for them, and casts the parameters that are not sharded.
  void unshard();
  /// Reshards: frees the whole parameters. Tensors that autograd saved are readable again after the next unshard().
  void reshard();

  /// New tensors over the whole trainable parameters, in order: the leaves of a unit's graph.
  std::vector<at::Tensor> trainable_tensors() const;
  /// The values among them that are shown in place; autograd accumulates their gradients itself.
  std::vector<at::Tensor> own_values() const;
  /// Sets the slots of the trainable parameters to `tensors`, and those of the frozen ones to their memory. If
  /// `tensors` is empty, sets all slots to the parameters' memory.
  void set_slots(const std::vector<at::Tensor>& tensors);
  /// Sets the slots of resharded parameters to meta tensors: shape and type without storage. Values shown in place
  /// stay.
  void set_slots_to_meta();

  /// Removes the gradients of `own_values()` from those of the trainable parameters, and returns them for autograd.
  std::vector<at::Tensor> take_own_gradients(std::vector<at::Tensor>& gradients) const;
  /// Takes the other gradients of the whole trainable parameters (undefined if there is none). With `send`, adds the
  /// kept ones and starts the reduce-scatter. Without it, keeps them for a later call.
  void start_reduce(const std::vector<at::Tensor>& gradients, bool send);
  /// Returns whether there was a call without `send` since the last reduce-scatter. The same on all ranks, even on
  /// those that did not use the parameters.
  bool keeps_gradients() const { return keeps_gradients_; }
  void drop_gradients();
  /// Waits for the reduce-scatter, and adds its result to the gradients of the values.
  void finish_reduce();

  /// Drops all pending work, after a failure.
  void reset() noexcept;

 private:
  struct Entry {
    nn::ParameterPtr parameter;
    std::vector<int64_t> shape;  // of the unsharded parameter
    int64_t flat = -1;           // index in flats_; -1: not sharded on fsdp or ep_shard
    int64_t memory = -1;         // index in memory_; -1: the value is shown in place
    at::Tensor kept = {};        // the whole gradient that was not sent yet, in the reduce type
  };
  void keep(Entry& entry, const at::Tensor& gradient) const;
  at::Tensor shown(const Entry& entry) const;

  std::string name_;
  std::vector<nn::ParameterPtr> parameters_;
  at::ScalarType compute_;
  at::ScalarType reduce_;
  ByteCount& count_;
  std::optional<at::Device> compute_device_;
  std::vector<Entry> entries_;
  std::vector<std::unique_ptr<FlatShards>> flats_;  // at most two: the dense domain's and the experts'
  std::unique_ptr<GatheredMemory> memory_;          // null before prepare()
  bool gathering_ = false;
  bool keeps_gradients_ = false;
};

}  // namespace lehr::shard
