// Context parallelism: the positions of a row spread over the ranks of axis cp.
//
// A row of T tokens is cut into 2 x ranks chunks; rank r holds chunks r and 2 x ranks - 1 - r, one behind the other.
// A chunk's work in causal attention grows with its number, so each rank has the same. All layers but attention work on
// tokens one by one and need nothing but right positions; attention gets another core (context_attention.h).
//
// Parameters are the same on all cp ranks and see different tokens: axis fsdp, which has the cp ranks, shards them and
// sums their gradients. Nothing is laid out here.
#pragma once

#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"

namespace lehr::shard {

/// How attention reaches the keys and values of the other ranks.
enum class ContextParallelMethod {
  all_gather,  ///< Gathers all of them at once. Quick, and holds the keys and values of whole rows in one layer.
  ring,        ///< Passes them from rank to rank while it computes. Holds those of two ranks; slower kernels.
};

/// The number of the chunk that is half `half` (0 or 1) of what rank `index` of `size` holds.
inline int64_t context_chunk(int64_t half, int64_t index, int64_t size) {
  return half == 0 ? index : 2 * size - 1 - index;
}

/// Throws a usage error that names the keys unless rows of so many tokens can be cut for so many ranks: a multiple of
/// 2 x ranks, if there are several. For checks before anything is allocated.
void check_context_parts(int64_t tokens, int64_t ranks);
/// What rank `index` of `size` holds of `dim`, the positions of a row. With one rank it is the tensor itself. Throws as
/// check_context_parts.
at::Tensor take_context_part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t size);
/// The whole of what all ranks hold, in their order: the inverse.
at::Tensor join_context_parts(const std::vector<at::Tensor>& parts, int64_t dim);

/// This rank's part of a model's inputs for whole rows. Position ids are written out where they are not given, as the
/// model would count a part's positions from 0. So everything that feeds a model under context parallelism must take
/// its inputs through here, or cut position ids itself. hidden_states are left alone: those of the stage before are cut
/// already. Throws a usage error for what has no meaning in a part of a row: caches, explicit masks, and masks of
/// tokens to pool.
nn::ModelInputs take_context_part(const nn::ModelInputs& inputs, const mesh::DistributedContext& context);

/// Gives every attention module under `module`, itself included, a core that sees whole rows. Throws a usage error if
/// one has a core of its own. With one cp rank it does nothing. `context` must outlive the module.
void parallelize_context(
    mesh::DistributedContext& context,
    torch::nn::Module& module,
    ContextParallelMethod method = ContextParallelMethod::all_gather);

}  // namespace lehr::shard
