// Parameters that are sharded over one group, sent as one flat buffer: one all_gather, one reduce_scatter.
#pragma once

#include <optional>
#include <vector>

#include "lehr/base/side_stream.h"
#include "lehr/mesh/group.h"
#include "lehr/nn/module.h"
#include "lehr/shard/gathered_memory.h"

namespace lehr::shard {

/// A parameter whose chunks of one dimension are spread over the ranks of a group.
struct ShardedParameter {
  nn::ParameterPtr parameter;
  std::vector<int64_t> shape;  ///< Of all chunks together.
  int64_t dim = 0;
};

/// Each rank's part of the buffer has room for the largest chunk of each parameter, so that uneven and empty chunks
/// need no collective of their own.
class FlatShards {
 public:
  /// Parameters are sent in type `compute`, gradients in type `reduce`. With `compute_device` values stay in host
  /// memory and are sent from that device, to which they are copied beside what it computes; gradients come back the
  /// same way. The group and `count` must live on.
  FlatShards(
      const mesh::Group& group,
      std::vector<ShardedParameter> parameters,
      at::ScalarType compute,
      at::ScalarType reduce,
      ByteCount& count,
      std::optional<at::Device> compute_device = {});

  /// Starts to gather; `finish_gather` waits, and copies each whole parameter to its target.
  void start_gather();
  void finish_gather(const std::vector<at::Tensor>& targets);
  /// Forgets a gather that was started, when nobody wants it any more.
  void drop_gather();

  /// Starts to sum the ranks' gradients of the whole parameters; an undefined one counts as zeros. Entries of frozen
  /// parameters are left out. `finish_reduce` waits, and adds each rank's chunk to the gradient of the value.
  void start_reduce(const std::vector<at::Tensor>& gradients);
  void finish_reduce();
  /// Forgets everything under way, after a failure.
  void reset() noexcept;

  const std::vector<ShardedParameter>& parameters() const { return parameters_; }
  /// Bytes of the buffer that receives a gather.
  int64_t bytes() const;

 private:
  at::Tensor chunk_of(const at::Tensor& whole, size_t index, int64_t rank) const;
  at::Tensor place_of(const at::Tensor& buffer, size_t index, int64_t offset, int64_t rank) const;
  int64_t room_for(size_t index) const { return rooms_[index]; }
  at::TensorOptions options_of(at::ScalarType type) const;
  void copy_back();

  const mesh::Group& group_;
  std::vector<ShardedParameter> parameters_;
  std::vector<int64_t> rooms_;  // elements of the largest chunk
  at::ScalarType compute_;
  at::ScalarType reduce_;
  ByteCount& count_;
  std::optional<at::Device> compute_device_;
  std::optional<SideStream> copies_;  // between host and compute device

  at::Tensor gathered_;  // (ranks, elements a rank) in the compute type, while a gather is under way
  mesh::Pending gathering_;
  at::Tensor reduced_;  // (elements a rank) in the reduce type
  mesh::Pending reducing_;
};

}  // namespace lehr::shard
