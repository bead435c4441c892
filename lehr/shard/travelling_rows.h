// Rows that travel among ranks while something else is computed.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::shard {

/// mesh::all_to_all in two halves, which autograd sees as two steps: what is computed between them runs while rows are
/// under way, and so does its backward, since the gradients travel back between the same two steps. The group must
/// outlive the graph.
class TravellingRows {
 public:
  /// Sends `input_sizes[r]` rows to rank r; `output_sizes[r]` will come from it.
  TravellingRows(
      const at::Tensor& rows,
      const mesh::Group& group,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes);
  /// The rows that came, in the order of ranks. Once.
  at::Tensor wait();

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> way_;  // what the halves share
  at::Tensor arriving_;
};

}  // namespace lehr::shard
