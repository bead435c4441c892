#include "lehr/model/mixtral/state_map.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lehr::model {

namespace {
bool replace(std::string& name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  if (at != std::string::npos) {
    name.replace(at, from.size(), to);
  }
  return at != std::string::npos;
}

std::string block_sparse_moe_name(std::string name) {
  const bool of_router = replace(name, ".mlp.gate.", ".block_sparse_moe.gate.") ||
                         replace(name, ".mlp.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias");
  if (!of_router && replace(name, ".mlp.experts.", ".block_sparse_moe.experts.")) {
    replace(name, ".gate_proj.", ".w1.");
    replace(name, ".down_proj.", ".w2.");
    replace(name, ".up_proj.", ".w3.");
  }
  return name;
}

std::string expert_bias_name(std::string name) {
  replace(name, ".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias");
  return name;
}

state::StateMap with_stored_names(const state::StateMap& map, std::string (*stored)(std::string)) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& name : map.input_names()) {
    names.emplace_back(stored(name), name);
  }
  return state::sequential({state::rename(names), map});
}
}  // namespace

state::StateMap with_block_sparse_moe_names(const state::StateMap& map) {
  return with_stored_names(map, block_sparse_moe_name);
}

state::StateMap with_expert_bias_beside_gate(const state::StateMap& map) {
  return with_stored_names(map, expert_bias_name);
}

}  // namespace lehr::model
