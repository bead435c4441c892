// The chunks of a sequence under context parallelism.
//
// A sequence of T tokens is split into 2 x ranks chunks; rank r holds chunks r and 2 x ranks - 1 - r, in this order:
// the load-balanced split of Megatron and of PyTorch's context_parallel, also called zigzag. The work of a chunk in
// causal attention grows with its number, so this balances the ranks.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::shard {

/// Returns the number of chunk `half` (0 or 1) of the two that rank `index` of `size` holds.
inline int64_t context_chunk(int64_t half, int64_t index, int64_t size) {
  return half == 0 ? index : 2 * size - 1 - index;
}

/// Throws a usage error that names the config keys unless sequences of `tokens` tokens can be split over `ranks`: with
/// several ranks, `tokens` must be a multiple of 2 x ranks. For checks before anything is allocated.
void check_context_parts(int64_t tokens, int64_t ranks);
/// Returns the shard of rank `index` of `size` along `dim`, the positions of a sequence. With one rank it is the tensor
/// itself. Throws as check_context_parts.
at::Tensor take_context_part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t size);

/// Reorders an all-gathered tensor, which has the ranks' shards one after another along `dim`, by position.
at::Tensor in_order_of_positions(const at::Tensor& gathered, int64_t dim, int64_t ranks);

}  // namespace lehr::shard
