#include "lehr/model/qwen3_5/state_map.h"

#include <string_view>

#include "lehr/model/fused_projection.h"

namespace lehr::model {

namespace {
constexpr std::string_view kQkvz = ".in_proj_qkvz.weight", kBa = ".in_proj_ba.weight";
}  // namespace

state::StateMap with_qwen3_5_names(const state::StateMap& map, const LinearAttentionConfig& sizes) {
  const int64_t key_heads = sizes.linear_num_key_heads, group = sizes.linear_num_value_heads / key_heads;
  const int64_t keys = sizes.linear_key_head_dim, values = group * sizes.linear_value_head_dim;
  std::vector<state::StateMap> maps;
  for (const std::string& name : map.input_names()) {
    const auto stored = [&](std::string_view own, std::string_view published) {
      return name.substr(0, name.size() - own.size()).append(published);
    };
    if (name.ends_with(kQkvz)) {
      maps.push_back(fused_projection(
          {{stored(kQkvz, ".in_proj_qkv.weight"), {keys, keys, values}},
           {stored(kQkvz, ".in_proj_z.weight"), {values}}},
          name,
          key_heads));
    } else if (name.ends_with(kBa)) {
      maps.push_back(fused_projection(
          {{stored(kBa, ".in_proj_b.weight"), {group}}, {stored(kBa, ".in_proj_a.weight"), {group}}}, name, key_heads));
    } else {
      maps.push_back(state::identity({name}));
    }
  }
  return state::sequential({state::parallel(maps), map});
}

}  // namespace lehr::model
