// Tensor and sequence parallelism (Shoeybi et al., https://arxiv.org/abs/1909.08053; Korthikanti et al.,
// https://arxiv.org/abs/2205.05198) along axis tp, applied to constructed modules from outside.
//
// Between blocks hidden_states are (B, T/tp, H), shard(1). A block all-gathers them once at its entry, each rank
// computes its share of the inner width, and the last projection reduce-scatters the results. All ranks of tp must call
// every function here, on a module on meta. All do nothing if tp has one rank. The context must outlive the module.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gated_delta_net.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/layer_norm.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/mamba2.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/relu_squared.h"
#include "lehr/nn/swiglu.h"

namespace lehr::shard {

// Blocks. Each maps shard(1) to shard(1).

/// Shards heads over the ranks, with their part of QK-norm over the full width. If there are fewer key/value heads than
/// ranks, the ranks that share a head each have some rows of its weight, and forward all-gathers the results. Throws a
/// usage error that names the key if num_attention_heads is not a multiple of the ranks, if num_key_value_heads is
/// neither a multiple nor a divisor of them, if the ranks that share a head do not divide its rows, or for an adapter
/// other than nn::LowRankAdapter.
void tensor_parallel(nn::GroupedQueryAttentionImpl& attention, mesh::DistributedContext& context);
/// The same for latent attention; the latents, which all heads share, are computed on every rank.
void tensor_parallel(nn::MultiHeadLatentAttentionImpl& attention, mesh::DistributedContext& context);
/// Shards key heads, with their value heads, over the ranks; the norm of a head is on every rank. Throws a usage error
/// that names the key if linear_num_key_heads is not a multiple of the ranks.
void tensor_parallel(nn::GatedDeltaNetImpl& block, mesh::DistributedContext& context);
/// Shards groups of heads, with their part of the norm, over the ranks. Throws a usage error that names the key if
/// n_groups is not a multiple of the ranks.
void tensor_parallel(nn::Mamba2Impl& block, mesh::DistributedContext& context);
/// Shards the inner width over the ranks. Throws a usage error if it is not a multiple of them, or for an adapter other
/// than nn::LowRankAdapter.
void tensor_parallel(nn::SwiGLUImpl& block, mesh::DistributedContext& context);
void tensor_parallel(nn::GeGLUImpl& block, mesh::DistributedContext& context);
void tensor_parallel(nn::GeluMlpImpl& block, mesh::DistributedContext& context);
void tensor_parallel(nn::ReluSquaredMlpImpl& block, mesh::DistributedContext& context);

/// Applies the style of its kind to each child of a decoder layer: on_parts to norms and linear sub-blocks, the
/// functions above to blocks. An MoE layer is left to expert parallelism, and a child that was laid out before as it
/// is. Throws a usage error that names the first child of another kind that has parameters.
void tensor_parallel_children(nn::Module& layer, mesh::DistributedContext& context);

// Styles for the parts of a block, to compose blocks of your own.

/// All-gathers the input of the module's call from (B, T/tp, ...) to (B, T, ...): shard(1) to replicate. Backward
/// reduce-scatters the gradients (torch's PrepareModuleInput).
void gather_sequence(nn::Module& block, mesh::DistributedContext& context);
/// Each rank computes a part of the outputs (ColwiseParallel): weight and bias are shard(0), the call maps replicate to
/// shard(last). Of an adapter, A is replicate and B shard(0). Throws a usage error if it is not an nn::LowRankAdapter.
void column_parallel(nn::LinearImpl& linear, mesh::DistributedContext& context);
/// The norm's elements are the outputs of column_parallel layers: weight is shard(0), the call maps shard(last) to
/// shard(last), and the mean of squares is all-reduced, in forward and in backward.
void column_parallel(nn::RMSNormImpl& norm, mesh::DistributedContext& context);
/// Each rank multiplies its part of the inputs (RowwiseParallel). The results are reduce-scattered, and the bias is
/// added afterwards: weight is shard(1), bias replicate, and the call maps (B, T, .) shard(last) to (B, T/tp, .)
/// shard(1). Of an adapter, A is shard(1) and B replicate. Throws a usage error if it is not an nn::LowRankAdapter.
void row_parallel(nn::LinearImpl& linear, mesh::DistributedContext& context);
/// The module works on shards of the sequence, or of the heads, without change (SequenceParallel): all its parameters
/// are replicate, and their gradients partial. Dropout masks of adapters are those of the rank's part of a sequence.
void on_parts(nn::Module& module, mesh::DistributedContext& context);
/// The module does the same work on all ranks, on whole sequences: the input of its call is gathered from shard(1) to
/// invariant, and all its parameters are invariant. For heads that score or embed sequences.
void on_whole_sequences(nn::Module& module, mesh::DistributedContext& context);

/// Throws a usage error that names the first parameter under `root` without a placement on axis tp, if that has more
/// than one rank: then a style was forgotten. Parameters of the `exempt` modules are skipped.
void require_tensor_layouts(
    const nn::Module& root, const mesh::DistributedContext& context, const std::vector<const nn::Module*>& exempt = {});

/// Throws a usage error that names both unless `size` (of the config key `key`) is a multiple of the ranks of tp.
void require_divisible(const char* key, int64_t size, const mesh::DistributedContext& context);

}  // namespace lehr::shard
