// Sharded parameters of one group in one flat buffer: one all-gather and one reduce-scatter for all of them.
#pragma once

#include <optional>
#include <vector>

#include "lehr/memory/side_stream.h"
#include "lehr/mesh/group.h"
#include "lehr/nn/module.h"
#include "lehr/shard/gathered_memory.h"

namespace lehr::shard {

/// A parameter that is sharded along one dimension over the ranks of a group.
struct ShardedParameter {
  nn::ParameterPtr parameter;
  std::vector<int64_t> shape;  ///< Shape of the unsharded parameter.
  int64_t dim = 0;             ///< The sharded dimension.
};

/// The flat buffer (ranks, elements per rank). Each rank's row has room for the largest shard of each parameter, so
/// that uneven and empty shards need no collective of their own.
class FlatShards {
 public:
  /// Parameters are sent in type `compute`, gradients in type `reduce`. With `compute_device`, values stay in host
  /// memory and are sent from that device. A side stream copies them to it, and gradients back, and overlaps with its
  /// computation. The group and `count` must outlive this object.
  FlatShards(
      const mesh::Group& group,
      std::vector<ShardedParameter> parameters,
      at::ScalarType compute,
      at::ScalarType reduce,
      ByteCount& count,
      std::optional<at::Device> compute_device = {});

  /// Starts the all-gather. `finish_gather` waits, and copies each whole parameter to its target.
  void start_gather();
  void finish_gather(const std::vector<at::Tensor>& targets);
  /// Waits for a started all-gather and frees its buffer, if a prefetch turns out not to be needed.
  void drop_gather();

  /// Starts the reduce-scatter of the gradients of the whole parameters. An undefined gradient counts as zeros; entries
  /// of frozen parameters are ignored. `finish_reduce` waits, and adds this rank's shard to the gradient of the value.
  void start_reduce(const std::vector<at::Tensor>& gradients);
  void finish_reduce();
  /// Drops all pending work, after a failure.
  void reset() noexcept;

  const std::vector<ShardedParameter>& parameters() const { return parameters_; }
  /// Bytes of the buffer that receives the all-gather.
  int64_t bytes() const;

 private:
  enum class Copy { to_buffer, from_buffer };
  // Copies between the whole parameter `index` and its shards of all ranks in `buffer` (ranks, elements per rank).
  void exchange(const at::Tensor& buffer, const at::Tensor& whole, size_t index, int64_t offset, Copy copy) const;
  at::Tensor chunk_of(const at::Tensor& whole, size_t index, int64_t rank) const;
  at::Tensor place_of(const at::Tensor& buffer, size_t index, int64_t offset, int64_t rank) const;
  int64_t room_for(size_t index) const { return rooms_[index]; }
  at::TensorOptions options_of(at::ScalarType type) const;
  void copy_back();

  const mesh::Group& group_;
  std::vector<ShardedParameter> parameters_;
  std::vector<int64_t> rooms_;  // elements of the largest shard, per parameter
  at::ScalarType compute_;
  at::ScalarType reduce_;
  ByteCount& count_;
  std::optional<at::Device> compute_device_;
  std::optional<SideStream> copies_;  // copies between host and compute device

  at::Tensor gathered_;  // (ranks, elements per rank) in the compute type, while an all-gather runs
  mesh::Pending gathering_;
  at::Tensor reduced_;  // (elements per rank) in the reduce type, while a reduce-scatter runs
  mesh::Pending reducing_;
};

}  // namespace lehr::shard
