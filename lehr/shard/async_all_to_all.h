// Asynchronous all-to-all: rows of a matrix are sent between ranks while the device computes.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::shard {

/// mesh::all_to_all, split into a start and a wait with an autograd node each. Computation between the two overlaps
/// with the all-to-all in forward, and its backward overlaps with the all-to-all of the gradients, which runs between
/// the same two nodes. The group must outlive the graph.
class AsyncAllToAll {
 public:
  /// Starts to send `input_sizes[r]` rows to rank r, and to receive `output_sizes[r]` rows from it.
  AsyncAllToAll(
      const at::Tensor& rows,
      const mesh::Group& group,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes);
  /// Waits, and returns the received rows in the order of ranks. Call it once.
  at::Tensor wait();

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> way_;  // state that both nodes share
  at::Tensor arriving_;
};

}  // namespace lehr::shard
