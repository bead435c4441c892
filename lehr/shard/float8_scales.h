// Scales of float8 layers whose operands are split over ranks: the same as on one device.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/mesh/distributed_context.h"

namespace lehr::shard {

/// Makes the float8 layers (nn/float8.h) under `root`, which is laid out, scale by the largest elements of whole rows,
/// all-reduced over tp and cp (ops/linear_float8/split_scales.h): over tp along the features that it shards, or along
/// tokens where its ranks have different ones, and over cp along tokens. The scales of experts' weight gradients are
/// those of the tokens on all ranks of tp and cp; the tokens that ep brings from other data ranks count too, so if ep
/// covers several of these, a scale is that of their micro-batches together. Call it after all other styles: it wraps
/// their calls. Throws a usage error that names a layer whose gradient is partial on tp, such as the projections to the
/// latents of attention. The context must outlive the modules.
void float8_scales_over_ranks(const torch::nn::Module& root, mesh::DistributedContext& context);

}  // namespace lehr::shard
