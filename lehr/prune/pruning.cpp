#include "lehr/prune/pruning.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::prune {

namespace {
using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::LinearSubblock;
using descriptor::MoESubblock;
using descriptor::NoOpSubblock;

void require_kept(const std::vector<int64_t>& kept, int64_t count, const std::string& what) {
  for (size_t i = 0; i < kept.size(); ++i) {
    require(
        kept[i] >= 0 && kept[i] < count && (i == 0 || kept[i - 1] < kept[i]),
        "{}: expected ascending numbers from 0 to {}, found {} at index {}",
        what,
        count - 1,
        kept[i],
        i);
  }
}

void cut_attention(const LayerKeeps& keeps, BlockConfig& block, const std::string& where) {
  if (keeps.no_attention) {
    block.attention = NoOpSubblock{};
  }
  if (keeps.linear_attention) {
    require(
        std::holds_alternative<AttentionSubblock>(block.attention),
        "{}: has no attention to replace by a linear layer",
        where);
    block.attention = LinearSubblock{};
  }
  auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (keeps.window != 0) {
    require(attention != nullptr, "{}: window: the layer has no attention", where);
    require(
        keeps.window > 0 && (attention->window == 0 || keeps.window < attention->window),
        "{}: window: expected 1 or more tokens{}, found {}",
        where,
        attention->window > 0 ? fmt::format(", fewer than the layer's {}", attention->window) : "",
        keeps.window);
    attention->window = keeps.window;
  }
  if (keeps.kv_heads.empty() && keeps.averaged_kv_heads == 0) {
    return;
  }
  require(attention != nullptr, "{}: kv_heads: the layer has no attention", where);
  int64_t& heads = attention->num_key_value_heads;
  require_kept(keeps.kv_heads, heads, where + ": kv_heads");
  const int64_t left =
      keeps.averaged_kv_heads != 0 ? keeps.averaged_kv_heads : static_cast<int64_t>(keeps.kv_heads.size());
  require(
      left > 0 && left <= heads && heads % left == 0 && (keeps.averaged_kv_heads == 0 || keeps.kv_heads.empty()),
      "{}: kv_heads: expected a divisor of the layer's {}, as each kept head serves the same number of query groups; "
      "found {}",
      where,
      heads,
      left);
  heads = left;
}

void cut_experts(const LayerKeeps& keeps, MoESubblock& moe, const std::string& where) {
  require_kept(keeps.experts, moe.num_local_experts, where + ": experts");
  require(
      keeps.experts_per_token >= 0 && keeps.experts_per_token <= moe.num_experts_per_tok,
      "{}: experts_per_token: expected 1 to {}, the parent's; found {}",
      where,
      moe.num_experts_per_tok,
      keeps.experts_per_token);
  moe.num_experts_per_tok = keeps.experts_per_token > 0 ? keeps.experts_per_token : moe.num_experts_per_tok;
  if (!keeps.experts.empty()) {
    moe.num_local_experts = static_cast<int64_t>(keeps.experts.size());
    require(
        moe.num_experts_per_tok <= moe.num_local_experts,
        "{}: experts: a token is routed to {}, so at least as many must be kept; found {}",
        where,
        moe.num_experts_per_tok,
        moe.num_local_experts);
  }
  if (!keeps.shared_channels.empty()) {
    require(moe.shared_expert_intermediate_dim > 0, "{}: shared_channels: the layer has no shared expert", where);
    require_kept(keeps.shared_channels, moe.shared_expert_intermediate_dim, where + ": shared_channels");
    moe.shared_expert_intermediate_dim = static_cast<int64_t>(keeps.shared_channels.size());
  }
  if (keeps.expert_channels.empty()) {
    return;
  }
  const auto width = static_cast<int64_t>(keeps.expert_channels.front().size());
  require(
      static_cast<int64_t>(keeps.expert_channels.size()) == moe.num_local_experts && width > 0 &&
          std::all_of(
              keeps.expert_channels.begin(),
              keeps.expert_channels.end(),
              [&](const auto& one) { return static_cast<int64_t>(one.size()) == width; }),
      "{}: expert_channels: expected equally long lists of channels for the {} experts that are kept",
      where,
      moe.num_local_experts);
  for (const auto& one : keeps.expert_channels) {
    require_kept(one, moe.expert_intermediate_dim, where + ": expert_channels");
  }
  moe.expert_intermediate_dim = width;
}

void cut_ffn(const LayerKeeps& keeps, BlockConfig& block, const std::string& where) {
  if (keeps.no_ffn) {
    block.ffn = NoOpSubblock{};
  }
  if (keeps.linear_ffn) {
    require(
        !block.ffn_is_no_op() && !block.ffn_is_linear(),
        "{}: has no feed-forward block to replace by a linear layer",
        where);
    block.ffn = LinearSubblock{};
  }
  auto* ffn = std::get_if<FFNSubblock>(&block.ffn);
  auto* moe = std::get_if<MoESubblock>(&block.ffn);
  if (!keeps.ffn_channels.empty()) {
    require(ffn != nullptr, "{}: ffn_channels: the layer has no feed-forward block", where);
    require_kept(keeps.ffn_channels, ffn->intermediate_size, where + ": ffn_channels");
    ffn->intermediate_size = static_cast<int64_t>(keeps.ffn_channels.size());
  }
  if (!keeps.experts.empty() || !keeps.expert_channels.empty() || !keeps.shared_channels.empty() ||
      keeps.experts_per_token != 0) {
    require(moe != nullptr, "{}: experts: the layer has no experts", where);
    cut_experts(keeps, *moe, where);
  }
}
}  // namespace

std::vector<BlockConfig> child_blocks(
    const Pruning& pruning, const std::vector<BlockConfig>& parent, const std::string& where) {
  require(
      pruning.layers.size() == parent.size(),
      "{}expected the kept parts of {} layers, found {}",
      where,
      parent.size(),
      pruning.layers.size());
  std::vector<BlockConfig> blocks = parent;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const LayerKeeps& keeps = pruning.layers[layer];
    const std::string place = fmt::format("{}layer {}", where, layer);
    require(!keeps.no_attention || !blocks[layer].attention_is_no_op(), "{}: has no attention to remove", place);
    require(!keeps.no_ffn || !blocks[layer].ffn_is_no_op(), "{}: has no feed-forward block to remove", place);
    cut_attention(keeps, blocks[layer], place);
    cut_ffn(keeps, blocks[layer], place);
  }
  return blocks;
}

}  // namespace lehr::prune
