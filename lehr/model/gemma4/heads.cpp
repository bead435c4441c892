#include "lehr/model/gemma4/heads.h"

#include <charconv>
#include <string>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_args.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

namespace {
constexpr const char* kHeadDim = "head_dim";
constexpr const char* kKeyValueHeads = "num_key_value_heads";

struct Heads {
  int64_t width, key_value_heads;
  bool operator==(const Heads&) const = default;
};

// One entry per layer. Keys are numbers of layers, which may begin with zeros.
std::vector<Heads> heads_of_layers(const Node& table, const DecoderConfig& shape) {
  require_size(table.origin() + ": ", "num_hidden_layers", shape.num_hidden_layers, kMostLayers);
  std::vector<Heads> heads(
      static_cast<size_t>(shape.num_hidden_layers), Heads{shape.head_dim, shape.num_key_value_heads});
  for (const auto& [key, own] : table.entries()) {
    size_t layer = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    require(
        error == std::errc() && end == key.data() + key.size() && layer < heads.size(),
        "{}: per_layer_config: expected layers from 0 to {}, found \"{}\"",
        table.origin(),
        heads.size() - 1,
        key);
    for (const auto& [name, value] : own.entries()) {
      require(
          name == kHeadDim || name == kKeyValueHeads,
          "{}: per_layer_config.{}: expected {} and {}, in which layers of this model type may differ, found {}",
          table.origin(),
          key,
          kHeadDim,
          kKeyValueHeads,
          name);
      (name == kHeadDim ? heads[layer].width : heads[layer].key_value_heads) = value.as_int();
    }
  }
  return heads;
}
}  // namespace

FullAttentionHeads read_full_attention_heads(const Node& config, const DecoderConfig& shape) {
  FullAttentionHeads full{.head_dim = 512, .keys_as_values = bool_or(config, "attention_k_eq_v", false)};
  const Node* layers = config.find(kPerLayerConfig);
  if (layers == nullptr || layers->is_null()) {
    if (const Node* width = config.find("global_head_dim")) {
      full.head_dim = width->as_int();
    }
    full.num_key_value_heads = full.keys_as_values ? int_or(config, "num_global_key_value_heads", 0) : 0;
    return full;
  }
  const std::vector<Heads> heads = heads_of_layers(*layers, shape);
  const Heads of_sliding{shape.head_dim, shape.num_key_value_heads}, &of_last = heads.back();
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    const bool slides = shape.pattern.slides(static_cast<int64_t>(layer));
    require(
        heads[layer] == (slides ? of_sliding : of_last),
        "{}: per_layer_config: expected the same heads in all layers with {}, found others in layer {}",
        config.origin(),
        slides ? "a window (those of the model)" : "full attention",
        layer);
  }
  full.head_dim = of_last.width;
  full.num_key_value_heads = of_last.key_value_heads == shape.num_key_value_heads ? 0 : of_last.key_value_heads;
  return full;
}

void write_full_attention_heads(const DecoderConfig& shape, Node& config) {
  const FullAttentionHeads& heads = value_of(shape.full_attention, "full attention");
  const bool differ = heads.num_key_value_heads > 0;
  config.set("global_head_dim", Node(heads.head_dim));
  config.set("attention_k_eq_v", Node(heads.keys_as_values));
  config.set("num_global_key_value_heads", differ && heads.keys_as_values ? Node(heads.num_key_value_heads) : Node());
  if (!differ || heads.keys_as_values) {
    return;
  }
  // Without attention_k_eq_v, num_global_key_value_heads has no effect.
  Node own = Node::make_table(), layers = Node::make_table();
  own.set(kHeadDim, Node(heads.head_dim));
  own.set(kKeyValueHeads, Node(heads.num_key_value_heads));
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    if (!shape.pattern.slides(layer)) {
      layers.set(std::to_string(layer), own);
    }
  }
  config.set(kPerLayerConfig, layers);
}

}  // namespace lehr::model
