// Collectives as operators that autograd sees. Each says what it takes and gives (base/layout.h), and its backward is
// the collective that takes and gives the gradients' placements the other way round:
//
// | operator            | takes      | gives     | backward       |
// | all_gather          | shard(d)   | replicate | reduce_scatter |
// | reduce_scatter      | partial    | shard(d)  | all_gather     |
// | all_reduce          | partial    | invariant | nothing        |
// | enter_replicated    | invariant  | replicate | all_reduce     |
// | gather_invariant    | shard(d)   | invariant | take_shard     |
// | take_shard          | invariant  | shard(d)  | gather         |
// | all_to_all          | varying    | varying   | all_to_all     |
//
// Groups of one rank cost nothing: the input is returned. A group must outlive the graph.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::mesh {

/// The ranks' parts one behind the other along `dim`.
at::Tensor all_gather(const at::Tensor& input, const Group& group, int64_t dim);
/// Sums over the ranks; each keeps its chunk of `dim`, whose size must be a multiple of the ranks.
at::Tensor reduce_scatter(const at::Tensor& input, const Group& group, int64_t dim);
/// Sums over the ranks; what follows is the same work on all of them.
at::Tensor all_reduce(const at::Tensor& input, const Group& group);
/// The input; what follows is different work on each rank, so gradients are summed on the way back.
at::Tensor enter_replicated(const at::Tensor& input, const Group& group);
/// As all_gather, where what follows is the same work on all ranks.
at::Tensor gather_invariant(const at::Tensor& input, const Group& group, int64_t dim);
/// This rank's chunk of `dim`, whose size must be a multiple of the ranks, of what all ranks have.
at::Tensor take_shard(const at::Tensor& input, const Group& group, int64_t dim);
/// Sends `input_sizes[r]` rows to rank r and gives the `output_sizes[r]` rows of each rank r, in the order of ranks.
at::Tensor all_to_all(
    const at::Tensor& input,
    const Group& group,
    const std::vector<int64_t>& output_sizes,
    const std::vector<int64_t>& input_sizes);

}  // namespace lehr::mesh
