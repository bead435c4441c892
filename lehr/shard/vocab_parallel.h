// Token embeddings and language-model heads whose vocabulary is spread over the axis tp: each rank has a stretch of the
// rows of every segment. Every function here must be called by all ranks of tp, on a module on meta, and does nothing
// if tp has one rank. The context must outlive the module.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/head.h"

namespace lehr::shard {

/// Tables are shard(0), as torch.chunk cuts them: parts may differ in size and be empty. The call maps ids (B, T), the
/// same on all ranks, to (B, T/tp, H) shard(1); ids of other ranks' rows give zeros, and the sum over the ranks is
/// scattered. The call throws a usage error if T is no multiple of the ranks.
void vocab_parallel(nn::SplitTokenEmbeddingsImpl& embeddings, mesh::DistributedContext& context);

/// Weights are shard(0), as above. The call takes hidden_states (B, T/tp, H) shard(1), and labels (B, T), the same on
/// all ranks, and gives losses (B, T), invariant, by vocab_parallel_linear_cross_entropy. There are no logits. Tied
/// weights need their embeddings laid out first; a usage error otherwise, and for adapters.
void vocab_parallel(nn::SplitLanguageModellingHeadImpl& head, mesh::DistributedContext& context);

}  // namespace lehr::shard
