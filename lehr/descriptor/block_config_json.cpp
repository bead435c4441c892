// Readers for `block_configs` of a config.json, in the formats of puzzletron and of Nemotron-NAS.
#include "lehr/base/error.h"
#include "lehr/descriptor/block_config_dialects.h"

namespace lehr::descriptor {

namespace {
// What a sub-block is, by the keys that it has in both formats.
enum class Form { sized, linear, no_op };

Form read_form(Entries& entries) {
  const bool no_op = entries.flag("no_op");
  const bool is_linear = entries.flag("replace_with_linear");
  if (no_op && is_linear) {
    refuse(*entries.get("replace_with_linear"), "expected false, found true; no_op removes the sub-block");
  }
  const Node* sparse = entries.get("sparsify");
  if (sparse != nullptr && !no_op && !sparse->items().empty()) {
    refuse(*sparse, "expected null; 2:4 sparsity is not supported");
  }
  return no_op ? Form::no_op : is_linear ? Form::linear : Form::sized;
}

void read_precision(Entries& entries) {
  const Node* precision = entries.get("weights_precision");
  if (precision != nullptr && precision->as_string() != "bf16") {
    refuse(
        *precision,
        fmt::format(
            "expected \"bf16\", found \"{}\"; the dtype of a weight is that of its tensor", precision->as_string()));
  }
}

// The window of a layer's own; 0 if it has none.
int64_t read_window(Entries& entries) {
  const Node* window = entries.get("window_length");
  if (window != nullptr && window->as_int() < 1) {
    refuse(
        *window,
        fmt::format("expected 1 or more tokens, found {}; null stands for the model's window", window->as_int()));
  }
  return window != nullptr ? window->as_int() : 0;
}

int64_t divided(int64_t heads, const Node& group) {
  const int64_t size = group.as_int();
  if (size <= 0 || heads % size != 0) {
    refuse(group, fmt::format("expected a divisor of num_attention_heads ({}), found {}", heads, size));
  }
  return heads / size;
}

}  // namespace

decltype(BlockConfig::attention) read_attention(const Node& node, const LayersByDefault& model) {
  Entries entries(node);
  const bool of_nas = entries.has("n_heads_in_group");
  if (of_nas && entries.has("num_key_value_heads")) {
    refuse(node, "n_heads_in_group and num_key_value_heads define the same size; remove one of them");
  }
  const Form form = read_form(entries);
  decltype(BlockConfig::attention) attention = NoOpSubblock{};
  if (form == Form::linear) {
    attention = LinearSubblock{};
  }
  const int64_t window = read_window(entries);
  if (of_nas) {
    const Node* group = entries.get("n_heads_in_group");
    entries.refuse_value("num_sink_tokens", "sink tokens are");
    entries.refuse_flag("unshifted_sink", "sink tokens are");
    entries.refuse_flag("use_prefill_window_in_sink_attention", "sink tokens are");
    if (form == Form::sized) {
      attention = AttentionSubblock{
          .num_key_value_heads =
              divided(model.num_attention_heads, group != nullptr ? *group : node.at("n_heads_in_group")),
          .window = window};
    }
  } else {
    read_precision(entries);
    entries.refuse_value("llama4", "attention of Llama 4 is");
    entries.refuse_value("mamba", "Mamba is");
    if (form == Form::sized) {
      attention = AttentionSubblock{.num_key_value_heads = entries.integer("num_key_value_heads"), .window = window};
    } else {
      entries.get("num_key_value_heads");
    }
  }
  entries.finish();
  return attention;
}

namespace {
MoESubblock read_moe(const Node& node) {
  Entries entries(node);
  MoESubblock moe{
      .num_local_experts = entries.integer("num_local_experts"),
      .num_experts_per_tok = entries.integer("num_experts_per_tok"),
      .expert_intermediate_dim = entries.integer("expert_intermediate_dim")};
  if (const Node* shared = entries.get("shared_expert_intermediate_dim")) {
    moe.shared_expert_intermediate_dim = shared->as_int();
  }
  entries.finish();
  return moe;
}

// DeciLM's formula.
int64_t width_of(const Node& ffn_mult, int64_t hidden_size) {
  const double factor = ffn_mult.as_double();
  const double width = 2 * factor * static_cast<double>(hidden_size) / 3;
  if (!(width >= 1 && width < 1e12)) {
    refuse(ffn_mult, fmt::format("expected a positive factor on hidden_size ({}), found {}", hidden_size, factor));
  }
  return (static_cast<int64_t>(width) + 255) / 256 * 256;
}

}  // namespace

decltype(BlockConfig::ffn) read_ffn(const Node& node, const LayersByDefault& model) {
  Entries entries(node);
  const bool of_nas = entries.has("ffn_mult");
  if (of_nas && entries.has("intermediate_size")) {
    refuse(node, "ffn_mult and intermediate_size define the same size; remove one of them");
  }
  const Form form = read_form(entries);
  decltype(BlockConfig::ffn) ffn = NoOpSubblock{};
  if (form == Form::linear) {
    ffn = LinearSubblock{};
  }
  if (of_nas) {
    const Node* factor = entries.get("ffn_mult");
    if (form == Form::sized) {
      ffn = FFNSubblock{width_of(factor != nullptr ? *factor : node.at("ffn_mult"), model.hidden_size)};
    }
  } else {
    read_precision(entries);
    const Node* moe = entries.get("moe");
    if (form != Form::sized || moe != nullptr) {
      entries.get("intermediate_size");
    } else {
      ffn = FFNSubblock{entries.integer("intermediate_size")};
    }
    if (moe != nullptr && form == Form::sized) {
      ffn = read_moe(*moe);
    }
  }
  entries.finish();
  return ffn;
}

void require_subblocks(const Node& node) {
  Entries entries(node);
  for (const char* half : {"attention", "ffn"}) {
    if (entries.get(half) == nullptr) {
      fail(
          "{}: {}.{}: expected a table, found nothing; set \"no_op\": true to remove the sub-block",
          node.origin(),
          node.key(),
          half);
    }
  }
  const Node* parallel = entries.get("parallel_blocks");
  if (parallel != nullptr && !parallel->items().empty()) {
    refuse(*parallel, "expected null; parallel blocks are not supported");
  }
  entries.finish();
}

namespace {
BlockConfig read_block(const Node& node, const LayersByDefault& model) {
  require_subblocks(node);
  BlockConfig block{.attention = read_attention(node.at("attention"), model), .ffn = read_ffn(node.at("ffn"), model)};
  check_block_config(block, fmt::format("{}: {}.", node.origin(), node.key()), model.num_attention_heads);
  return block;
}

std::vector<BlockConfig> read_all(const Node& list, const LayersByDefault& model) {
  const size_t layers = model.blocks.size();
  if (list.items().size() != layers) {
    refuse(list, fmt::format("expected one per layer ({}, num_hidden_layers), found {}", layers, list.size()));
  }
  std::vector<BlockConfig> blocks;
  for (const Node& block : list.items()) {
    blocks.push_back(read_block(block, model));
  }
  return blocks;
}
}  // namespace

std::optional<std::vector<BlockConfig>> read_block_configs(const Node& config, const LayersByDefault& by_default) {
  Entries entries(config);
  const Node* blocks = entries.get("block_configs");
  const Node* per_layer = entries.get("per_layer_config");
  if (blocks != nullptr && per_layer != nullptr) {
    refuse(*per_layer, "block_configs defines the same; remove one of them");
  }
  if (blocks != nullptr) {
    return read_all(*blocks, by_default);
  }
  if (per_layer != nullptr) {
    return read_per_layer_config(*per_layer, by_default);
  }
  return std::nullopt;
}

}  // namespace lehr::descriptor
