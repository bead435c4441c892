// Expert parallelism: the experts of a mixture spread over the ranks of axis ep, and what the ranks' routers must know
// of each other.
//
// Tokens are sorted by expert, sent to the ranks that hold their experts, sorted once more there, and sent back. No
// token is dropped. Counts travel first; their sums by rank are the one thing that the host reads.
//
// Router and shared expert are the same on all ranks. Every rank sees other tokens, so their gradients are partial on
// all axes (tp too: tokens are split over it by sequence parallelism).
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/moe.h"

namespace lehr::shard {

/// Lays the experts' parameters out as shard(0) on axis ep, those of adapters too if they are there already, and lets
/// tokens travel over it. Before memory is allocated. With one ep rank nothing is sent, but the parameters are in the
/// expert domain all the same: they are fully sharded over ep_shard, which has the ranks of tp too. On one device it
/// does nothing. Throws a usage error if num_experts is no multiple of the ranks. `context` must outlive the layer.
void parallelize_experts(mesh::DistributedContext& context, nn::MoELayerImpl& layer);

/// Lets the losses of a forward count the tokens of all ranks that hold parts of its rows: those of cp and tp. Their
/// values are then the same on these ranks, and of one data rank's microbatch: a trainer that adds them up over ranks
/// adds over dp_replicate and dp_shard only, and gives `RouterLossWeights::share` of the whole microbatch, not of a
/// rank's positions. Values are collective: all ranks of cp and tp must ask for them, or none. `context` must outlive
/// the losses.
void share_router_losses(mesh::DistributedContext& context, nn::RouterLosses& losses);

/// nn::moe_tokens_per_expert over all ranks that see different tokens (dp_replicate, dp_shard, cp, tp), (layers, E)
/// int64, the same on all of them; undefined without mixtures. For nn::update_expert_bias and statistics. A collective.
at::Tensor reduce_expert_loads(mesh::DistributedContext& context, torch::nn::Module& root);

}  // namespace lehr::shard
