// A unit of a fully sharded model: parameters that are gathered, shown to forward, reduced and released together.
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

/// Which of the three ways a parameter of a unit is shown depends on its layout and type: gathered from the ranks that
/// have its chunks; cast; or the value itself, which takes no memory and no copy.
class ShardUnit {
 public:
  /// Parameters are laid out. With `compute_device` values stay in host memory, and whole parameters are on that
  /// device: none is shown as it is. All ranks construct the units of a model in the same order: groups are asked for.
  ShardUnit(
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

  /// Whether there is anything to gather or to cast.
  bool has_memory() const;
  bool gathered() const { return memory_ && memory_->allocated(); }
  bool gathering() const { return gathering_; }
  /// Bytes that the unit takes while it is gathered, and while a gather is under way: the second is the larger one
  /// where chunks are uneven.
  int64_t bytes() const { return memory_ ? memory_->bytes() : 0; }

  /// Learns types and the device, once parameters have memory. From then on slots show the compute type, also while
  /// nothing is gathered. Throws a usage error if they have none yet.
  void prepare();
  /// Sends and casts; does nothing if that is under way or done. Throws a usage error if parameters have no memory yet.
  void start_gather();
  /// Waits; afterwards the whole parameters can be read.
  void gather();
  /// Frees the whole parameters. Tensors that autograd saved are readable again after the next gather.
  void release();

  /// Fresh tensors of the whole trainable parameters, in order, for a graph to begin with.
  std::vector<at::Tensor> trainable_tensors() const;
  /// The values among them that are shown as they are; autograd adds their gradients itself.
  std::vector<at::Tensor> own_values() const;
  /// Shows `tensors` as the trainable parameters and the others as they are; without any, all as they are.
  void show(const std::vector<at::Tensor>& tensors);
  /// Shows what cannot be read: shapes and types without memory; for values shown as they are, the values.
  void show_nothing();

  /// Takes those of `own_values()` out of the gradients of the trainable parameters, for autograd to add.
  std::vector<at::Tensor> take_own_gradients(std::vector<at::Tensor>& gradients) const;
  /// Takes the other gradients of the whole trainable parameters (undefined where there is none) and, with those that
  /// were kept, starts to sum them over the ranks; without `send` they are kept for a later call.
  void start_reduce(const std::vector<at::Tensor>& gradients, bool send);
  /// Whether there are gradients that were not sent. The same on all ranks, used there or not.
  bool keeps_gradients() const { return keeps_gradients_; }
  void drop_gradients();
  /// Waits, and adds them to the gradients of the values.
  void finish_reduce();

  /// Forgets everything under way, after a failure.
  void reset() noexcept;

 private:
  struct Entry {
    nn::ParameterPtr parameter;
    std::vector<int64_t> shape;  // of what forward reads
    int64_t flat = -1;           // number of the FlatShards that gathers it; -1: this rank has it whole
    int64_t memory = -1;         // number in the memory; -1: shown as it is
    at::Tensor kept = {};        // the whole gradient so far, in the reduce type
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
  std::vector<std::unique_ptr<FlatShards>> flats_;  // the dense domain's, the experts'
  std::unique_ptr<GatheredMemory> memory_;          // once the parameters have memory
  bool gathering_ = false;
  bool keeps_gradients_ = false;
};

}  // namespace lehr::shard
