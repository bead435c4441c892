// Collectives as differentiable operators. Each has a required placement of its input and a placement of its result
// (base/layout.h). Its backward is the collective that maps the dual placements in the opposite direction:
//
// | operator            | input      | result    | backward         |
// | all_gather          | shard(d)   | replicate | reduce_scatter   |
// | reduce_scatter      | partial    | shard(d)  | all_gather       |
// | all_reduce          | partial    | invariant | identity         |
// | enter_replicated    | invariant  | replicate | all_reduce       |
// | gather_invariant    | shard(d)   | invariant | take_shard       |
// | take_shard          | invariant  | shard(d)  | gather_invariant |
// | all_to_all          | varying    | varying   | all_to_all       |
//
// In Megatron's terms, enter_replicated is copy_to_tensor_model_parallel_region, all_reduce is reduce_from_...,
// gather_invariant is gather_from_... and take_shard is scatter_to_tensor_model_parallel_region; all_gather and
// reduce_scatter are gather_from_ and reduce_scatter_to_sequence_parallel_region.
//
// Groups of one rank cost nothing: the input is returned. A group must outlive the graph.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::mesh {

/// Concatenates the ranks' tensors along `dim`, in the order of ranks.
at::Tensor all_gather(const at::Tensor& input, const Group& group, int64_t dim);
/// all_gather() without a graph, in two parts: computation between them overlaps with the communication.
class StartedAllGather {
 public:
  /// Starts the all-gather; `input` must not change before `wait`.
  StartedAllGather(const at::Tensor& input, const Group& group, int64_t dim);
  /// Returns the result. Call it once.
  at::Tensor wait();

 private:
  at::Tensor parts_;  // (ranks, ...)
  int64_t dim_;
  Pending pending_;
};
/// Sums over the ranks; each keeps its chunk of `dim`, whose size must be a multiple of the number of ranks.
at::Tensor reduce_scatter(const at::Tensor& input, const Group& group, int64_t dim);
/// Sums over the ranks; the operators that follow do the same work on all of them.
at::Tensor all_reduce(const at::Tensor& input, const Group& group);
/// Returns the input; the operators that follow do different work on each rank, so backward sums the gradients.
at::Tensor enter_replicated(const at::Tensor& input, const Group& group);
/// Like all_gather, if the operators that follow do the same work on all ranks.
at::Tensor gather_invariant(const at::Tensor& input, const Group& group, int64_t dim);
/// Returns this rank's chunk of `dim`, a multiple of the number of ranks in size, of a tensor that all ranks hold.
at::Tensor take_shard(const at::Tensor& input, const Group& group, int64_t dim);
/// Sends `input_sizes[r]` rows to rank r and returns the `output_sizes[r]` rows of each rank r, in the order of ranks.
at::Tensor all_to_all(
    const at::Tensor& input,
    const Group& group,
    const std::vector<int64_t>& output_sizes,
    const std::vector<int64_t>& input_sizes);

}  // namespace lehr::mesh
