// Ownership of replicated shards: of all ranks that hold the same shard, one counts it in norms and writes it to
// checkpoints.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"

namespace lehr::shard {

/// Returns whether this rank owns its shard of the parameter: it is the first along every axis of the parameter's
/// domain that does not shard the parameter. The layout must name every axis of more than one rank (fsdp stands for
/// dp_shard and cp; the expert domain covers all axes but pp). Throws a usage error that names a missing one.
bool is_owner(const nn::Parameter& parameter, const mesh::DistributedContext& context);

/// Returns whether this rank is the first along every axis of the parameter's domain. It owns the state that does not
/// depend on the shard, such as an optimizer's step count of the parameter.
bool is_first(const nn::Parameter& parameter, const mesh::DistributedContext& context);

/// Replicates the parameter on each axis of its domain that has more than one rank and that its layout does not name
/// yet. The domain is expert if the layout names ep or ep_shard, else dense. pp is in neither: other stages have other
/// parameters.
void replicate_elsewhere(nn::Parameter& parameter, const mesh::DistributedContext& context);

/// Returns the axes of the parameter's domain, without pp, slowest first: dp_replicate, fsdp, tp; or dp_replicate,
/// ep_shard, ep.
std::vector<std::string> domain_axes(const nn::Parameter& parameter);

}  // namespace lehr::shard
