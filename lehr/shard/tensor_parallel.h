// Tensor and sequence parallelism (Shoeybi et al., https://arxiv.org/abs/1909.08053; Korthikanti et al.,
// https://arxiv.org/abs/2205.05198) along the axis tp, attached to finished modules from outside.
//
// Between blocks hidden_states are (B, T/tp, H), shard(1). A block gathers them once at its entry, its ranks compute
// parts of its inner width, and its last projection sums and scatters the results. Every function here must be called
// by all ranks of tp, on a module on meta, and does nothing if tp has one rank. The context must outlive the module.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/swiglu.h"

namespace lehr::shard {

// Blocks. Each maps shard(1) to shard(1).

/// Heads are spread over the ranks. Of key/value heads that are fewer than the ranks, each rank has a part of the rows
/// of the one that its queries read; the parts of what they give are joined in forward. Throws a usage error that names
/// the key if num_attention_heads is no multiple of the ranks, if num_key_value_heads is neither a multiple nor a
/// divisor of them, if so many ranks cannot share a head's rows evenly, or if a projection has an adapter.
void tensor_parallel(nn::GroupedQueryAttentionImpl& attention, mesh::DistributedContext& context);
/// As above; the latents, which all heads share, are computed on every rank.
void tensor_parallel(nn::MultiHeadLatentAttentionImpl& attention, mesh::DistributedContext& context);
/// The inner width is spread over the ranks. Throws a usage error if it is no multiple of them, or if a projection has
/// an adapter.
void tensor_parallel(nn::SwiGLUImpl& block, mesh::DistributedContext& context);
void tensor_parallel(nn::GeGLUImpl& block, mesh::DistributedContext& context);
void tensor_parallel(nn::GeluMlpImpl& block, mesh::DistributedContext& context);

// What blocks are made of, for those of one's own.

/// The module's call gets its input (B, T/tp, ...) gathered, (B, T, ...): shard(1) to replicate; the gradients that the
/// ranks compute are parts of a sum, which is scattered.
void gather_sequence(nn::Module& block, mesh::DistributedContext& context);
/// Each rank computes a part of the outputs: weight and bias shard(0); replicate to shard(last). Throws a usage error
/// for a layer with an adapter.
void column_parallel(nn::LinearImpl& linear, mesh::DistributedContext& context);
/// Each rank multiplies its part of the inputs; the sum is scattered, and only then gets the bias, each rank's
/// positions on that rank: weight shard(1), bias replicate; (B, T, .) shard(last) to (B, T/tp, .) shard(1). Throws a
/// usage error for a layer with an adapter.
void row_parallel(nn::LinearImpl& linear, mesh::DistributedContext& context);
/// The module works on parts of the sequence, or of the heads, as it is: all its parameters are replicate, so their
/// gradients are parts of a sum.
void on_parts(nn::Module& module, mesh::DistributedContext& context);
/// The module does the same work on all ranks, on whole sequences: its call's input shard(1) becomes invariant, and all
/// its parameters are. For heads that score or embed sequences.
void on_whole_sequences(nn::Module& module, mesh::DistributedContext& context);

/// Throws a usage error that names the first parameter under `root` that nothing was said of on the axis tp, if that
/// has more than one rank: a style was forgotten. `exempt` are modules that another style is to cover.
void require_tensor_layouts(
    const nn::Module& root, const mesh::DistributedContext& context, const std::vector<const nn::Module*>& exempt = {});

/// Throws a usage error that names both unless `size` (of the config key `key`) is a multiple of the ranks of tp.
void require_divisible(const char* key, int64_t size, const mesh::DistributedContext& context);

}  // namespace lehr::shard
