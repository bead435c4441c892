// Token embeddings and language-model heads with the vocabulary sharded over axis tp: each rank has a range of rows of
// every segment. All ranks of tp must call every function here, on a module on meta. Both do nothing if tp has one
// rank. The context must outlive the module.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/head.h"

namespace lehr::shard {

/// Shards tables along dimension 0 as torch.chunk does: shards may differ in size and be empty. The call maps ids
/// (B, T), the same on all ranks, to (B, T/tp, H) shard(1): ids of other ranks' rows yield zeros, and the results are
/// reduce-scattered. The call throws a usage error if T is not a multiple of the ranks.
void vocab_parallel(nn::SplitTokenEmbeddingsImpl& embeddings, mesh::DistributedContext& context);

/// Shards weights along dimension 0 in the same way. The call takes hidden_states (B, T/tp, H) shard(1), and labels
/// (B, T), the same on all ranks, and returns losses (B, T), invariant, by vocab_parallel_linear_cross_entropy. Without
/// labels it returns the logits (B, T, V) of the whole vocabulary, on all ranks and without a gradient. Throws a usage
/// error if weights are tied and their embeddings are not laid out yet, and for adapters.
void vocab_parallel(nn::SplitLanguageModellingHeadImpl& head, mesh::DistributedContext& context);

}  // namespace lehr::shard
