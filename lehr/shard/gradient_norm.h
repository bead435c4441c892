// Gradient norm of a model that is sharded over a mesh.
#pragma once

#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"

namespace lehr::shard {

/// Returns the L2 norm over all gradients of the whole model, as optim::global_norm does on one device: float64,
/// 0-dimensional, on the device of the gradients, with the same bits on all ranks. A shard that several ranks hold
/// counts once (`is_owner`); undefined gradients count as zeros. Gradients must be synchronized. All ranks of the world
/// must call it.
at::Tensor gradient_norm(const std::vector<nn::NamedParameter>& parameters, mesh::DistributedContext& context);

}  // namespace lehr::shard
