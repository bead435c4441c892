#include "lehr/model/qwen3_5/state_map.h"

#include <string_view>

namespace lehr::model {

namespace {
constexpr std::string_view kQkvz = ".in_proj_qkvz.weight", kBa = ".in_proj_ba.weight";

// Joins two stored tensors. Each has the rows of all heads, kind by kind; `name` has the rows of all kinds, key head by
// key head. `first` and `second` are the numbers of rows that a key head has of each kind.
state::StateMap rows_by_key_head(
    const std::string& name,
    const std::vector<std::string>& stored,
    const std::vector<int64_t>& first,
    const std::vector<int64_t>& second,
    int64_t key_heads) {
  std::vector<int64_t> kinds = first, sizes(2, 0);
  kinds.insert(kinds.end(), second.begin(), second.end());
  for (size_t i = 0; i < kinds.size(); ++i) {
    sizes[i < first.size() ? 0 : 1] += key_heads * kinds[i];
  }
  std::vector<Range> rows;
  for (int64_t head = 0; head < key_heads; ++head) {
    int64_t begin = 0;  // of the rows of this kind
    for (const int64_t size : kinds) {
      rows.push_back({begin + head * size, begin + (head + 1) * size});
      begin += key_heads * size;
    }
  }
  const std::string joined = name + " by kind";
  return state::sequential({state::concatenate(stored, joined, 0, sizes), state::reorder(joined, name, 0, rows)});
}
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
      maps.push_back(rows_by_key_head(
          name,
          {stored(kQkvz, ".in_proj_qkv.weight"), stored(kQkvz, ".in_proj_z.weight")},
          {keys, keys, values},
          {values},
          key_heads));
    } else if (name.ends_with(kBa)) {
      maps.push_back(rows_by_key_head(
          name, {stored(kBa, ".in_proj_b.weight"), stored(kBa, ".in_proj_a.weight")}, {group}, {group}, key_heads));
    } else {
      maps.push_back(state::identity({name}));
    }
  }
  return state::sequential({state::parallel(maps), map});
}

}  // namespace lehr::model
