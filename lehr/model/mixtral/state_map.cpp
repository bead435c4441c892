#include "lehr/model/mixtral/state_map.h"

#include <string>

#include "lehr/model/stored_names.h"

namespace lehr::model {

namespace {
std::string block_sparse_moe_name(std::string name) {
  const bool of_router =
      replace_in_name(name, ".mlp.gate.", ".block_sparse_moe.gate.") ||
      replace_in_name(name, ".mlp.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias");
  if (!of_router && replace_in_name(name, ".mlp.experts.", ".block_sparse_moe.experts.")) {
    replace_in_name(name, ".gate_proj.", ".w1.");
    replace_in_name(name, ".down_proj.", ".w2.");
    replace_in_name(name, ".up_proj.", ".w3.");
  }
  return name;
}

std::string expert_bias_name(std::string name) {
  replace_in_name(name, ".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias");
  return name;
}
}  // namespace

state::StateMap with_block_sparse_moe_names(const state::StateMap& map) {
  return with_stored_names(map, block_sparse_moe_name);
}

state::StateMap with_expert_bias_beside_gate(const state::StateMap& map) {
  return with_stored_names(map, expert_bias_name);
}

}  // namespace lehr::model
