// Reader for `per_layer_config` of a config.json: a table of layers, each with the keys that differ from the model's.
#include <charconv>

#include "lehr/base/error.h"
#include "lehr/descriptor/block_config_dialects.h"

namespace lehr::descriptor {

namespace {
// True if `list`, such as ["attention", "mlp"], contains `part`.
bool skips(const Node* list, const std::string& part) {
  if (list == nullptr) {
    return false;
  }
  bool found = false;
  for (const Node& item : list->items()) {
    const std::string& name = item.as_string();
    if (name != "attention" && name != "mlp") {
      refuse(item, fmt::format("expected \"attention\" or \"mlp\", found \"{}\"", name));
    }
    found = found || name == part;
  }
  return found;
}

void change_ffn(BlockConfig& block, Entries& entries, const Node& node) {
  const Node* width = entries.get("intermediate_size");
  const Node* experts = entries.get("num_experts");
  const Node* local_experts = entries.get("num_local_experts");
  const Node* chosen = entries.get("num_experts_per_tok");
  const Node* expert_width = entries.get("moe_intermediate_size");
  if (experts != nullptr && local_experts != nullptr) {
    refuse(node, "num_experts and num_local_experts define the same size; remove one of them");
  }
  experts = experts != nullptr ? experts : local_experts;
  // As in transformers, num_experts = 0 means that this layer has no experts.
  if (block.is_moe() && experts != nullptr && experts->as_int() == 0) {
    if (width == nullptr) {
      refuse(*experts, "a layer without experts requires intermediate_size");
    }
    block.ffn = FFNSubblock{};
    experts = nullptr;
  }
  if (auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    for (const Node* other : {experts, chosen, expert_width}) {
      if (other != nullptr) {
        refuse(*other, "the layer has no experts");
      }
    }
    ffn->intermediate_size = width != nullptr ? width->as_int() : ffn->intermediate_size;
  } else if (auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    if (width != nullptr) {
      refuse(
          *width, "the layer has experts; set moe_intermediate_size, or num_experts = 0 for a layer without experts");
    }
    moe->num_local_experts = experts != nullptr ? experts->as_int() : moe->num_local_experts;
    moe->num_experts_per_tok = chosen != nullptr ? chosen->as_int() : moe->num_experts_per_tok;
    moe->expert_intermediate_dim = expert_width != nullptr ? expert_width->as_int() : moe->expert_intermediate_dim;
  } else {
    for (const Node* other : {width, experts, chosen, expert_width}) {
      if (other != nullptr) {
        refuse(*other, "the layer skips mlp");
      }
    }
  }
}

void change_block(BlockConfig& block, const Node& node, int64_t num_attention_heads) {
  Entries entries(node);
  const Node* skipped = entries.get("skip");
  const Node* heads = entries.get("num_key_value_heads");
  if (skips(skipped, "attention")) {
    if (heads != nullptr) {
      refuse(*heads, "the layer skips attention");
    }
    block.attention = NoOpSubblock{};
  } else if (heads != nullptr) {
    block.attention = AttentionSubblock{.num_key_value_heads = heads->as_int()};
  }
  if (skips(skipped, "mlp")) {
    block.ffn = NoOpSubblock{};
  }
  change_ffn(block, entries, node);
  entries.finish();
  check_block_config(block, fmt::format("{}: {}: ", node.origin(), node.key()), num_attention_heads);
}

}  // namespace

std::vector<BlockConfig> read_per_layer_config(const Node& table, const LayersByDefault& model) {
  std::vector<BlockConfig> blocks = model.blocks;
  std::vector<bool> seen(blocks.size());
  for (const auto& [key, changes] : table.entries()) {
    size_t layer = 0;  // transformers pads with zeros, so "07" is valid
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (error != std::errc() || end != key.data() + key.size() || layer >= blocks.size() || seen[layer]) {
      refuse(table, fmt::format("expected each layer from 0 to {} at most once, found \"{}\"", blocks.size() - 1, key));
    }
    seen[layer] = true;
    change_block(blocks[layer], changes, model.num_attention_heads);
  }
  return blocks;
}

}  // namespace lehr::descriptor
