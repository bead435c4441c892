#include "lehr/descriptor/block_config.h"

#include "lehr/base/error.h"
#include "lehr/config/node.h"

namespace lehr::descriptor {

namespace {
void require_positive(const std::string& where, const char* key, int64_t value) {
  require(value > 0, "{}{}: expected a positive number, found {}", where, key, value);
}

void check_moe(const MoESubblock& moe, const std::string& where) {
  require_positive(where, "ffn.moe.num_local_experts", moe.num_local_experts);
  require_positive(where, "ffn.moe.num_experts_per_tok", moe.num_experts_per_tok);
  require_positive(where, "ffn.moe.expert_intermediate_dim", moe.expert_intermediate_dim);
  require(
      moe.num_experts_per_tok <= moe.num_local_experts,
      "{}ffn.moe.num_experts_per_tok: expected at most num_local_experts ({}), found {}",
      where,
      moe.num_local_experts,
      moe.num_experts_per_tok);
  require(
      moe.shared_expert_intermediate_dim >= 0,
      "{}ffn.moe.shared_expert_intermediate_dim: expected 0 (no shared expert) or a positive number, found {}",
      where,
      moe.shared_expert_intermediate_dim);
}

// The keys that every sub-block has in puzzletron's format.
Node subblock(bool no_op, bool is_linear) {
  Node node = Node::make_table();
  node.set("no_op", Node(no_op));
  node.set("replace_with_linear", Node(is_linear));
  node.set("sparsify", Node());
  node.set("weights_precision", Node("bf16"));
  return node;
}

Node attention_node(const BlockConfig& block) {
  Node node = subblock(block.attention_is_no_op(), block.attention_is_linear());
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  node.set("num_key_value_heads", attention != nullptr ? Node(attention->num_key_value_heads) : Node());
  node.set("llama4", Node());
  node.set("mamba", Node());
  if (attention != nullptr && attention->window > 0) {
    node.set("window_length", Node(attention->window));
  }
  return node;
}

Node ffn_node(const BlockConfig& block) {
  Node node = subblock(block.ffn_is_no_op(), block.ffn_is_linear());
  Node moe;
  if (const auto* experts = std::get_if<MoESubblock>(&block.ffn)) {
    moe = Node::make_table();
    moe.set("num_local_experts", Node(experts->num_local_experts));
    moe.set("num_experts_per_tok", Node(experts->num_experts_per_tok));
    moe.set("expert_intermediate_dim", Node(experts->expert_intermediate_dim));
    moe.set("shared_expert_intermediate_dim", Node(experts->shared_expert_intermediate_dim));
  }
  const auto* ffn = std::get_if<FFNSubblock>(&block.ffn);
  node.set("moe", std::move(moe));
  node.set("intermediate_size", ffn != nullptr ? Node(ffn->intermediate_size) : Node());
  return node;
}
}  // namespace

std::string describe(const BlockConfig& block) {
  std::string text = block.attention_is_linear() ? "a linear layer for attention, " : "no attention, ";
  if (const auto* attention = std::get_if<AttentionSubblock>(&block.attention)) {
    text = fmt::format("{} KV heads, ", attention->num_key_value_heads);
    text += attention->window > 0 ? fmt::format("window {}, ", attention->window) : "";
  }
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    return text + fmt::format("FFN {}", ffn->intermediate_size);
  }
  if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    return text + fmt::format(
                      "{} experts of {}, {} per token",
                      moe->num_local_experts,
                      moe->expert_intermediate_dim,
                      moe->num_experts_per_tok);
  }
  return text + (block.ffn_is_linear() ? "a linear layer for FFN" : "no FFN");
}

void check_block_config(const BlockConfig& block, const std::string& where, int64_t num_attention_heads) {
  if (const auto* attention = std::get_if<AttentionSubblock>(&block.attention)) {
    require_positive(where, "attention.num_key_value_heads", attention->num_key_value_heads);
    require(
        num_attention_heads % attention->num_key_value_heads == 0,
        "{}attention.num_key_value_heads: expected a divisor of num_attention_heads ({}), found {}",
        where,
        num_attention_heads,
        attention->num_key_value_heads);
    require(
        attention->window >= 0,
        "{}attention.window_length: expected 1 or more tokens, found {}; leave the key out for the model's window",
        where,
        attention->window);
  }
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    require_positive(where, "ffn.intermediate_size", ffn->intermediate_size);
  }
  if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    check_moe(*moe, where);
  }
}

Node write_block_configs(const std::vector<BlockConfig>& blocks) {
  Node list = Node::make_list();
  for (const BlockConfig& block : blocks) {
    Node node = Node::make_table();
    node.set("attention", attention_node(block));
    node.set("ffn", ffn_node(block));
    node.set("parallel_blocks", Node());
    list.push_back(std::move(node));
  }
  return list;
}

}  // namespace lehr::descriptor
