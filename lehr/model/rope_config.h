// RoPE scaling in a config.json.
#pragma once

#include <optional>
#include <string>

#include "lehr/config/node.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

/// The keys beside a RoPE table that its scaling depends on.
struct RopeScalingContext {
  int64_t max_position_embeddings;
  /// The key beside the table, which transformers prefers to the one in it.
  std::optional<int64_t> original_max_position_embeddings = {};
  bool partial = false;       ///< The family supports heads that are rotated in part.
  bool proportional = false;  ///< The family supports nn::ProportionalRopeScaling.
};

/// Reads a rope_scaling or rope_parameters table. Throws a usage error for an unknown rope_type, and for heads that are
/// rotated in part unless the family supports that.
nn::RopeScaling read_rope_scaling(const Node& rope, const RopeScalingContext& context);

/// Returns the RoPE table of a config.json: rope_scaling, as transformers 4 writes it, unless it is empty; else
/// rope_parameters. Null if it has neither.
const Node* rope_table_of(const Node& config);

/// Returns rope_theta of that table, else that beside it, else `otherwise`.
double read_rope_theta(const Node& config, double otherwise);
/// The same for partial_rotary_factor.
double read_partial_rotary_factor(const Node& config, double otherwise);

/// Throws a usage error, prefixed with `where`, for values that make angles infinite or undefined.
void check_rope_scaling(const nn::RopeScaling& scaling, double rope_theta, int64_t head_dim, const std::string& where);

/// Returns the rope_scaling entry; null if there is no scaling.
Node write_rope_scaling(const nn::RopeScaling& scaling);

}  // namespace lehr::model
