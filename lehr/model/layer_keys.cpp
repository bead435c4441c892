#include "lehr/model/layer_keys.h"

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/rope_config.h"

namespace lehr::model {

namespace {
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

// The table of one kind of layer in rope_parameters; null if there is none.
const Node* rope_table(const Node& config, const char* kind) {
  const Node* tables = config.find("rope_parameters");
  const Node* table = tables != nullptr && !tables->is_null() ? tables->find(kind) : nullptr;
  return table != nullptr && !table->is_null() ? table : nullptr;
}

Rope read_rope_table(const Node& table, double theta, const RopeScalingContext& context) {
  require(
      bool_or(table, "truncate", true),
      "{}: {}.truncate: expected true, found false; transformers ignores this key in models of this type",
      table.origin(),
      table.key());
  return {.theta = double_or(table, "rope_theta", theta), .scaling = read_rope_scaling(table, context)};
}

// transformers 4 reads `type` as rope_type, transformers 5 ignores it in models of these types.
void refuse_type(const Node& scaling) {
  const Node* type = scaling.find("rope_type") == nullptr ? scaling.find("type") : nullptr;
  require(
      type == nullptr || type->as_string() == "default",
      "{}: rope_scaling.type: expected the key rope_type, because versions of transformers read this one differently",
      scaling.origin());
}

Node rope_table(double theta, const nn::RopeScaling& scaling) {
  Node table = write_rope_scaling(scaling);
  if (table.is_null()) {
    table = Node::make_table();
    table.set("rope_type", Node("default"));
  }
  table.set("rope_theta", Node(theta));
  return table;
}
}  // namespace

void write_layer_types(const DecoderConfig& shape, Node& node) {
  Node types = Node::make_list();
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    types.push_back(Node(shape.pattern.slides(layer) ? kSliding : kFull));
  }
  node.set("layer_types", types);
  node.set("sliding_window", number_or_null(shape.pattern.sliding_window));
}

void read_qwen_windows(const Node& config, DecoderConfig& shape) {
  const auto types = read_layer_types(config, shape.num_hidden_layers);
  if (bool_or(config, "use_sliding_window", false)) {
    shape.pattern.sliding_window =
        config.find("sliding_window") == nullptr ? 4096 : optional_int(config, "sliding_window");
  }
  if (types) {
    shape.pattern.sliding = *types;
  } else if (shape.pattern.sliding_window) {
    require_size(config.origin() + ": ", "num_hidden_layers", shape.num_hidden_layers, kMostLayers);
    const int64_t first = int_or(config, "max_window_layers", 28);
    for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
      shape.pattern.sliding.push_back(layer >= first);
    }
  }
}

void write_qwen_windows(const DecoderConfig& shape, Node& node) {
  int64_t first = 0;  // layer_types overrides it, which older versions do not read
  while (first < shape.num_hidden_layers && !shape.pattern.slides(first)) {
    ++first;
  }
  write_layer_types(shape, node);
  node.set("max_window_layers", Node(first));
  node.set("use_sliding_window", Node(shape.pattern.sliding_window.has_value()));
}

void read_layer_ropes(
    const Node& config,
    const Rope& full,
    const Rope& sliding,
    const char* sliding_key,
    DecoderConfig& shape,
    bool proportional) {
  const RopeScalingContext context{
      .max_position_embeddings = shape.max_position_embeddings, .proportional = proportional};
  if (const Node* tables = config.find("rope_parameters"); tables != nullptr && !tables->is_null()) {
    for (const auto& [key, value] : tables->entries()) {
      require(
          value.is_null() || (value.is_table() && (key == kFull || key == kSliding)),
          "{}: rope_parameters.{}: expected a table {} and a table {}, found another key",
          config.origin(),
          key,
          kFull,
          kSliding);
    }
  }
  Rope of_full{.theta = double_or(config, "rope_theta", full.theta), .scaling = full.scaling};
  Rope of_sliding = sliding;
  if (sliding_key != nullptr) {
    of_sliding.theta = double_or(config, sliding_key, sliding.theta);
  }
  if (const Node* table = rope_table(config, kFull)) {
    of_full = read_rope_table(*table, of_full.theta, context);
  }
  if (const Node* table = rope_table(config, kSliding)) {
    of_sliding = read_rope_table(*table, of_sliding.theta, context);
  }
  if (const Node* scaling = config.find("rope_scaling"); scaling != nullptr && !scaling->is_null()) {
    refuse_type(*scaling);
    of_full = read_rope_table(*scaling, of_full.theta, context);
  }
  shape.rope_theta = of_full.theta;
  shape.rope_scaling = of_full.scaling;
  shape.sliding_rope = of_sliding;
}

void write_layer_ropes(const DecoderConfig& shape, Node& node) {
  const Rope sliding = shape.sliding_rope.value_or(Rope{.theta = shape.rope_theta});
  Node tables = Node::make_table();
  tables.set(kFull, rope_table(shape.rope_theta, shape.rope_scaling));
  tables.set(kSliding, rope_table(sliding.theta, sliding.scaling));
  node.set("rope_parameters", tables);
}

}  // namespace lehr::model
