#include "lehr/model/nemotron_h/state_map.h"

#include <fmt/format.h>

#include <array>

namespace lehr::model {

namespace {
constexpr std::string_view kInProj = ".mixer.in_proj.weight";
constexpr std::string_view kConv = ".mixer.conv1d.";

// Replaces `from` at the beginning of a name.
bool replace_prefix(std::string& name, std::string_view from, std::string_view to) {
  if (!name.starts_with(from)) {
    return false;
  }
  name.replace(0, from.size(), to);
  return true;
}

std::string stored_name(std::string name) {
  const bool bare = !name.starts_with("model.") && !name.starts_with("lm_head.") && !name.starts_with("score.");
  replace_prefix(name, "model.", "");
  if (!replace_prefix(name, "embed_tokens.", "embeddings.")) {
    replace_prefix(name, "norm.", "norm_f.");
  }
  return bare || name.starts_with("lm_head.") || name.starts_with("score.") ? name : "backbone." + name;
}

// Brings the rows of z, x, B, C and dt, each of all groups, into the order of groups, each with all five.
state::StateMap rows_by_group(const std::string& stored, const std::string& name, const Mamba2Config& sizes) {
  const int64_t heads = sizes.mamba_num_heads / sizes.n_groups, width = heads * sizes.mamba_head_dim;
  const std::array<int64_t, 5> rows{width, width, sizes.ssm_state_size, sizes.ssm_state_size, heads};
  const auto part = [&](size_t kind, int64_t group) { return fmt::format("{}.{}.{}", name, kind, group); };
  std::vector<std::string> by_kind, by_group;
  std::vector<int64_t> rows_by_kind, rows_of_groups;
  for (size_t kind = 0; kind < rows.size(); ++kind) {
    for (int64_t group = 0; group < sizes.n_groups; ++group) {
      by_kind.push_back(part(kind, group));
      rows_by_kind.push_back(rows[kind]);
    }
  }
  for (int64_t group = 0; group < sizes.n_groups; ++group) {
    for (size_t kind = 0; kind < rows.size(); ++kind) {
      by_group.push_back(part(kind, group));
      rows_of_groups.push_back(rows[kind]);
    }
  }
  return state::sequential(
      {state::split(stored, by_kind, 0, rows_by_kind), state::concatenate(by_group, name, 0, rows_of_groups)});
}
}  // namespace

state::StateMap with_nemotron_h_names(const state::StateMap& map, const Mamba2Config& sizes) {
  std::vector<state::StateMap> maps;
  for (const std::string& name : map.input_names()) {
    const size_t conv = name.find(kConv);
    if (name.ends_with(kInProj)) {
      maps.push_back(rows_by_group(stored_name(name), name, sizes));
    } else if (conv == std::string::npos) {
      maps.push_back(state::rename(stored_name(name), name));
    } else if (const std::string own = name.substr(conv + kConv.size()); own == "x" || own == "x_bias") {
      const std::string module = name.substr(0, conv + kConv.size()), ending = own.substr(1);
      const int64_t keys = sizes.n_groups * sizes.ssm_state_size;
      maps.push_back(state::split(
          stored_name(module) + (ending.empty() ? "weight" : "bias"),
          {module + "x" + ending, module + "b" + ending, module + "c" + ending},
          0,
          {sizes.inner_size(), keys, keys}));
    }
  }
  return state::sequential({state::parallel(maps), map});
}

}  // namespace lehr::model
