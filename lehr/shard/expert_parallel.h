// Expert parallelism: the experts of an MoE layer are sharded over the ranks of axis ep, and the routers' statistics
// are summed over ranks.
//
// Tokens are sorted by expert, dispatched by an all-to-all to the ranks that hold their experts, sorted again there,
// and sent back by a second all-to-all (combine). The layer is dropless. The counts are exchanged first; only their
// sums by rank are read by the host.
//
// Router and shared expert are the same on all ranks. Every rank has different tokens, so their gradients are partial
// on all axes (also on tp, over which sequence parallelism splits the tokens).
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/moe.h"

namespace lehr::shard {

/// Lays the experts' parameters out as shard(0) on axis ep, including those of adapters that are attached already, and
/// dispatches tokens over ep. Call it before memory is allocated. With one ep rank nothing is sent, but the parameters
/// are in the expert domain all the same: they are fully sharded over ep_shard, which covers the ranks of tp too. Does
/// nothing on one device. The experts of a rank are computed in `parts` (shard/expert_dispatch.h). Throws a usage error
/// if num_experts is not a multiple of the ranks or, with several, the experts of a rank not one of `parts`. `context`
/// must outlive the layer.
void parallelize_experts(mesh::DistributedContext& context, nn::MoELayerImpl& layer, int64_t parts = 1);

/// Makes the router losses of a forward pass count the tokens of all ranks that hold parts of its sequences: those of
/// cp and tp. Their values are then the same on these ranks, and cover the micro-batch of one data rank. So a trainer
/// that sums them over ranks sums over dp_replicate and dp_shard only, and computes `RouterLossWeights::share` from the
/// whole micro-batch, not from a rank's positions. Reading the values is collective: all ranks of cp and tp must do it,
/// or none. `context` must outlive the losses.
void share_router_losses(mesh::DistributedContext& context, nn::RouterLosses& losses);

/// Returns nn::moe_tokens_per_expert summed over all ranks that see different tokens (dp_replicate, dp_shard, cp, tp):
/// (layers, E) int64, the same on all of them; undefined without MoE layers. For nn::update_expert_bias and statistics.
/// A collective.
at::Tensor reduce_expert_loads(mesh::DistributedContext& context, torch::nn::Module& root);

}  // namespace lehr::shard
