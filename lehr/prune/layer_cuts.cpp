#include "lehr/prune/layer_cuts.h"

#include <algorithm>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::prune {

namespace {
using descriptor::AttentionSubblock;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;
using Shape = std::vector<int64_t>;
using MaybeCut = std::optional<ParameterCut>;

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool keeps_all(const std::vector<int64_t>& kept, int64_t count) {
  return kept.empty() || static_cast<int64_t>(kept.size()) == count;
}

[[noreturn]] void refuse(const std::string& name) {
  fail("{}: pruning does not know this parameter; leave its sub-block unchanged", name);
}

MaybeCut cut_attention(
    const std::string& name,
    const Shape& shape,
    const LayerKeeps& keeps,
    int64_t num_heads,
    nn::QKNormWidth qk_norm_width) {
  const bool full_norms = qk_norm_width == nn::QKNormWidth::full;  // with rows of each head, as the projections
  const bool is_key_or_value = is_one_of(name, {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"}) ||
                               (full_norms && name == "k_norm.weight");
  const bool is_query =
      is_one_of(name, {"q_proj.weight", "q_proj.bias", "sinks"}) || (full_norms && name == "q_norm.weight");
  const bool stays =
      is_one_of(name, {"q_norm.weight", "k_norm.weight", "o_proj.bias"}) && !is_query && !is_key_or_value;
  if (!is_key_or_value && !is_query && !stays && name != "o_proj.weight") {
    refuse("self_attn." + name);
  }
  if (keeps.averaged_kv_heads > 0) {
    const Average mean{.block = shape[0] / num_heads, .count = num_heads / keeps.averaged_kv_heads};
    return is_key_or_value ? MaybeCut({.how = mean}) : std::nullopt;
  }
  if (stays) {
    return std::nullopt;
  }
  if (is_key_or_value) {
    return ParameterCut{.how = Pick{.dim = 0, .indices = rows_of_blocks(keeps.kv_heads, shape[0] / num_heads)}};
  }
  std::vector<int64_t> groups = query_groups(keeps.kv_heads, num_heads);
  if (is_query) {
    return ParameterCut{.how = Pick{.dim = 0, .indices = rows_of_blocks(groups, shape[0] / num_heads)}};
  }
  for (int64_t& group : groups) {
    if (!std::binary_search(keeps.kv_heads.begin(), keeps.kv_heads.end(), group)) {
      group = Pick::kZeros;
    }
  }
  return ParameterCut{.how = Pick{.dim = 1, .indices = rows_of_blocks(groups, shape[1] / num_heads)}};
}

double factor_of(int64_t before, size_t after, bool scale) {
  return scale ? static_cast<double>(before) / static_cast<double>(after) : 1;
}

// Of a feed-forward block, or of a shared expert: `block` is "mlp." or "mlp.shared_expert.".
MaybeCut cut_channels(
    const std::string& block,
    const std::string& name,
    const std::vector<int64_t>& channels,
    int64_t width,
    bool scale) {
  if (is_one_of(name, {"gate_proj.weight", "gate_proj.bias", "up_proj.weight", "up_proj.bias"})) {
    return ParameterCut{.how = Pick{.dim = 0, .indices = channels}};
  }
  if (name == "down_proj.weight") {
    return ParameterCut{.how = Pick{.dim = 1, .indices = channels}, .factor = factor_of(width, channels.size(), scale)};
  }
  if (name == "down_proj.bias") {
    return std::nullopt;
  }
  refuse(block + name);
}

MaybeCut cut_moe_layer(const std::string& name, const LayerKeeps& keeps, const MoESubblock& moe, bool scale) {
  PickOfExperts experts{.experts = keeps.experts, .channels = keeps.expert_channels};
  if (experts.experts.empty()) {
    experts.experts.resize(static_cast<size_t>(moe.num_local_experts));
    std::iota(experts.experts.begin(), experts.experts.end(), 0);
  }
  if (is_one_of(
          name,
          {"grouped_experts.gate_proj.weight",
           "grouped_experts.gate_proj.bias",
           "grouped_experts.up_proj.weight",
           "grouped_experts.up_proj.bias"})) {
    experts.dim = 1;
    return ParameterCut{.how = experts};
  }
  if (is_one_of(name, {"grouped_experts.gate_up_proj.weight", "grouped_experts.gate_up_proj.bias"})) {
    experts.dim = 1;
    for (std::vector<int64_t>& channels : experts.channels) {
      channels = rows_of_blocks(channels, 2);  // a row of the gate and one of the other half in turn
    }
    return ParameterCut{.how = experts};
  }
  if (name == "grouped_experts.down_proj.bias") {
    experts.channels.clear();
    return ParameterCut{.how = experts};
  }
  if (name == "grouped_experts.down_proj.weight") {
    experts.dim = 2;
    const bool narrower = !experts.channels.empty();
    return ParameterCut{
        .how = experts,
        .factor = narrower ? factor_of(moe.expert_intermediate_dim, experts.channels.front().size(), scale) : 1};
  }
  if (is_one_of(name, {"router.gate.weight", "router.gate.bias", "router.expert_bias"})) {
    return ParameterCut{.how = Pick{.dim = 0, .indices = experts.experts}};
  }
  if (is_one_of(name, {"shared_expert_gate.weight", "fc1_latent_proj.weight", "fc2_latent_proj.weight"})) {
    return std::nullopt;
  }
  refuse("mlp." + name);
}
}  // namespace

std::vector<int64_t> query_groups(const std::vector<int64_t>& kept, int64_t num_heads) {
  const int64_t served = num_heads / static_cast<int64_t>(kept.size());
  std::vector<int64_t> groups;
  size_t next_kept = 0;
  int64_t next_gone = 0;
  // Every `served`-th group is that of a kept head; groups of removed heads fill the others.
  for (int64_t place = 0; place < num_heads; ++place) {
    if (place % served == 0) {
      groups.push_back(kept[next_kept++]);
      continue;
    }
    while (std::binary_search(kept.begin(), kept.end(), next_gone)) {
      ++next_gone;
    }
    groups.push_back(next_gone++);
  }
  return groups;
}

MaybeCut cut_of(
    const std::string& name,
    const Shape& shape,
    const LayerKeeps& keeps,
    const descriptor::BlockConfig& block,
    const CutRules& rules) {
  const std::string attention_prefix = "self_attn.";
  const std::string ffn_prefix = "mlp.";
  // A parameter of which everything is kept is not cut, so the child reads it from the parent's files unchanged.
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (name.starts_with(attention_prefix) && attention != nullptr) {
    const int64_t heads = attention->num_key_value_heads;
    const bool whole =
        keeps.averaged_kv_heads == 0 ? keeps_all(keeps.kv_heads, heads) : keeps.averaged_kv_heads == heads;
    return whole ? std::nullopt
                 : cut_attention(name.substr(attention_prefix.size()), shape, keeps, heads, rules.qk_norm_width);
  }
  if (!name.starts_with(ffn_prefix)) {
    return std::nullopt;  // the norms of the sub-blocks
  }
  const std::string inner = name.substr(ffn_prefix.size());
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    const bool whole = keeps_all(keeps.ffn_channels, ffn->intermediate_size);
    return whole ? std::nullopt
                 : cut_channels(
                       ffn_prefix, inner, keeps.ffn_channels, ffn->intermediate_size, rules.scale_pruned_weights);
  }
  const auto* moe = std::get_if<MoESubblock>(&block.ffn);
  if (moe == nullptr) {
    return std::nullopt;
  }
  const std::string shared_prefix = "shared_expert.";
  if (inner.starts_with(shared_prefix)) {
    const int64_t width = moe->shared_expert_intermediate_dim;
    return keeps_all(keeps.shared_channels, width) ? std::nullopt
                                                   : cut_channels(
                                                         ffn_prefix + shared_prefix,
                                                         inner.substr(shared_prefix.size()),
                                                         keeps.shared_channels,
                                                         width,
                                                         rules.scale_pruned_weights);
  }
  const bool all_experts = keeps_all(keeps.experts, moe->num_local_experts);
  const bool all_channels =
      keeps.expert_channels.empty() || keeps_all(keeps.expert_channels.front(), moe->expert_intermediate_dim);
  return all_experts && all_channels ? std::nullopt : cut_moe_layer(inner, keeps, *moe, rules.scale_pruned_weights);
}

}  // namespace lehr::prune
