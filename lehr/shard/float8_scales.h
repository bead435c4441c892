// Float8 layers whose operands are split over ranks have the scales of one device.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/mesh/distributed_context.h"

namespace lehr::shard {

/// Makes the float8 layers (nn/float8.h) under `root`, which has its placements, take the largest elements of whole
/// rows over the ranks of tp and cp (ops/linear_float8/split_scales.h): over the features that a weight's placement on
/// tp shards, and over the tokens of cp, and of tp where each of its ranks computes a part of them. Call it after all
/// other styles: it wraps their calls. Throws a usage error that names a layer whose gradients tp only has as a sum, as
/// the latents of attention. The context must outlive the modules.
void float8_scales_over_ranks(const torch::nn::Module& root, mesh::DistributedContext& context);

}  // namespace lehr::shard
