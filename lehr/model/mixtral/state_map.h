// The names of experts in published checkpoints of Mixtral and MiniMax M2.
#pragma once

#include "lehr/state/state_map.h"

namespace lehr::model {

/// Returns `map`, whose stored tensors have the names of decoder_state_map, with those of published checkpoints:
/// block_sparse_moe in place of mlp in layers with experts, and w1, w3 and w2 for gate, up and down of each expert.
state::StateMap with_block_sparse_moe_names(const state::StateMap& map);

/// Returns `map` with the bias that selects experts beside the router's gate (mlp.e_score_correction_bias), not in it.
state::StateMap with_expert_bias_beside_gate(const state::StateMap& map);

}  // namespace lehr::model
