// Which rank answers for what several ranks hold: it counts in norms, and writes to checkpoints, once.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"

namespace lehr::shard {

/// Whether this rank is the one of all that hold the same box of the parameter: the first along every axis that the
/// parameter's layout names and does not cut. A parameter must be laid out on every axis of more than one rank (fsdp
/// stands for dp_shard and cp; the expert domain for all but pp); throws a usage error that names one that is missing.
bool is_owner(const nn::Parameter& parameter, const mesh::DistributedContext& context);

/// Whether this rank is the first along every axis of the parameter's domain: it answers for what does not depend on
/// the box at all (an optimizer's step of the parameter).
bool is_first(const nn::Parameter& parameter, const mesh::DistributedContext& context);

/// Lays the parameter out as replicated on each axis of its domain of more than one rank that its layout does not name
/// yet. The domain is expert if the layout names ep or ep_shard, else dense. pp is in none: other stages have other
/// parameters.
void replicate_elsewhere(nn::Parameter& parameter, const mesh::DistributedContext& context);

/// The axes of the parameter's domain, without pp, slowest first: dp_replicate, fsdp, tp; or dp_replicate, ep_shard,
/// ep.
std::vector<std::string> domain_axes(const nn::Parameter& parameter);

}  // namespace lehr::shard
