// Context parallelism: the positions of a sequence are sharded over the ranks of axis cp.
//
// Rank r holds two chunks of each sequence (context_chunks.h). All layers but attention, gated DeltaNet and Mamba-2
// work on single tokens and need only the right position ids; those get other cores (context_attention.h,
// context_delta.h).
//
// Parameters are the same on all cp ranks, which use them on different tokens. Axis fsdp, which covers the cp ranks,
// shards them and sums their gradients; nothing is laid out here.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"
#include "lehr/nn/rotary.h"
#include "lehr/shard/context_chunks.h"

namespace lehr::shard {

/// Method by which attention gets the keys and values of the other ranks.
enum class ContextParallelMethod {
  all_gather,  ///< All of them in one collective. Fast, but one layer holds the keys and values of whole sequences.
  ring,        ///< Passed from rank to rank during the computation. Holds those of two ranks; slower kernels.
};

/// Returns this rank's shard of a model's inputs for whole sequences. Fills in position ids if they are not given,
/// since the model would count the positions of a shard from 0. So code that feeds a model under context parallelism
/// must either call this function or shard position ids itself. hidden_states are left alone: those of the previous
/// pipeline stage are sharded already. A head that pools tokens has results on the ranks with these. Throws a usage
/// error for inputs that cannot be sharded: caches, explicit masks, and snapshots.
nn::ModelInputs take_context_part(const nn::ModelInputs& inputs, const mesh::DistributedContext& context);

/// Gives every attention module, GatedDeltaNet and Mamba2 under `module`, itself included, a core over whole sequences;
/// `method` is that of attention. Throws a usage error if one has a core of its own. Does nothing with one cp rank.
/// `context` must outlive the module.
void parallelize_context(
    mesh::DistributedContext& context,
    torch::nn::Module& module,
    ContextParallelMethod method = ContextParallelMethod::all_gather);

/// Makes the dropout masks of adapters and of a classifier under `root` those of whole sequences. Does nothing with one
/// cp rank.
void follow_whole_sequences(const mesh::DistributedContext& context, const torch::nn::Module& root);

/// Makes rotary angles that depend on the sequence length use that of whole sequences, of which a rank has a part. Does
/// nothing with one cp rank. `context` must outlive `rope`.
void share_largest_position(mesh::DistributedContext& context, nn::RotaryEmbeddingProvider& rope);

}  // namespace lehr::shard
