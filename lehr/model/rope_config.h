// RoPE scaling in a config.json.
#pragma once

#include <string>

#include "lehr/config/node.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

/// Reads a rope_scaling or rope_parameters table. Throws a usage error for an unknown rope_type, and for heads that are
/// rotated in part unless the family supports that (`partial`).
nn::RopeScaling read_rope_scaling(const Node& rope, int64_t max_position_embeddings, bool partial = false);

/// Returns the RoPE table of a config.json: rope_scaling, as transformers 4 writes it, unless it is empty; else
/// rope_parameters. Null if it has neither.
const Node* rope_table_of(const Node& config);

/// Returns rope_theta of that table, else that beside it, else `otherwise`.
double read_rope_theta(const Node& config, double otherwise);

/// Throws a usage error, prefixed with `where`, for values that make angles infinite or undefined.
void check_rope_scaling(const nn::RopeScaling& scaling, double rope_theta, int64_t head_dim, const std::string& where);

/// Returns the rope_scaling entry; null if there is no scaling.
Node write_rope_scaling(const nn::RopeScaling& scaling);

}  // namespace lehr::model
