// The tokens of experts, if they are spread evenly.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"

namespace lehr::plan {

/// Returns the fraction of all tokens that one expert has if they are spread evenly: top-k / experts; 0 without
/// experts.
double expert_visits(nn::Model& model);

/// Returns the tokens that each expert of a rank has in a micro-batch of `tokens` tokens (sequences x seq_len).
double expert_tokens(double expert_visits, int64_t tokens, const mesh::DeviceMeshParameters& mesh);

}  // namespace lehr::plan
