// Token dispatch over the ranks of expert parallelism, in parts whose all-to-alls overlap with the matmuls of others.
#pragma once

#include <memory>

#include "lehr/mesh/group.h"
#include "lehr/nn/expert_dispatch.h"

namespace lehr::shard {

/// Returns a dispatcher that computes the experts of each rank in `parts`, which must divide their number. Tokens are
/// sorted by (part, rank, expert). All parts are sent together. While the device computes one part, the next ones
/// arrive, and the results of those before it are sent back. Backward does the same with the gradients; with several
/// parts the weights' gradients are computed last, while those of the last part's rows are sent back
/// (ops/grouped_linear/grouped_weight.h). With any number of parts every sum has the same order. Under an operator
/// watch each rank is assumed to receive as many rows as it sends. `group` must outlive the dispatcher.
std::shared_ptr<const nn::ExpertDispatcher> expert_dispatcher(const mesh::Group& group, int64_t parts);

}  // namespace lehr::shard
