// RoPE scaling in a config.json.
#pragma once

#include <string>

#include "lehr/base/node.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

/// Reads a rope_scaling or rope_parameters table. Throws a usage error for an unknown rope_type, and for heads that are
/// rotated in part unless the family supports that (`partial`).
nn::RopeScaling read_rope_scaling(const Node& rope, int64_t max_position_embeddings, bool partial = false);

/// Whether config.json says rope_theta, by itself or in rope_parameters.
bool has_rope_theta(const Node& config);

/// Throws a usage error, prefixed with `where`, for values that make angles infinite or undefined.
void check_rope_scaling(const nn::RopeScaling& scaling, double rope_theta, int64_t head_dim, const std::string& where);

/// Returns the rope_scaling entry; null if there is no scaling.
Node write_rope_scaling(const nn::RopeScaling& scaling);

}  // namespace lehr::model
