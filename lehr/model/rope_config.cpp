#include "lehr/model/rope_config.h"

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"

namespace lehr::model {

nn::RopeScaling read_rope_scaling(const Node& rope, const RopeScalingContext& context) {
  for (const auto& [key, value] : rope.entries()) {
    require(
        !value.is_table(),
        "{}: {}: expected one table for all layers, found a table within it; this is not supported",
        value.origin(),
        value.key());
  }
  const Node* type_node = rope.find("rope_type");
  if (type_node == nullptr) {
    type_node = rope.find("type");
  }
  const std::string type = type_node != nullptr ? type_node->as_string() : "default";
  if (type == "proportional" && context.proportional) {
    return nn::ProportionalRopeScaling{
        .factor = double_or(rope, "factor", 1), .partial_rotary_factor = double_or(rope, "partial_rotary_factor", 1)};
  }
  require(
      context.partial || double_or(rope, "partial_rotary_factor", 1) == 1,
      "{}: {}.partial_rotary_factor: expected 1, found another value; this is not supported",
      rope.origin(),
      rope.key());
  const auto own_original = optional_int(rope, "original_max_position_embeddings");
  const auto original =
      context.original_max_position_embeddings ? context.original_max_position_embeddings : own_original;
  if (type == "default") {
    return nn::NoRopeScaling{};
  }
  const double factor = rope.at("factor").as_double();
  if (type == "linear") {
    return nn::LinearRopeScaling{.factor = factor};
  }
  if (type == "dynamic") {
    // transformers reads no other length.
    return nn::DynamicNtkRopeScaling{
        .factor = factor, .original_max_position_embeddings = context.max_position_embeddings};
  }
  if (type == "yarn") {
    return nn::YarnRopeScaling{
        .factor = factor,
        .original_max_position_embeddings = original.value_or(context.max_position_embeddings),
        .beta_fast = double_or(rope, "beta_fast", 32),
        .beta_slow = double_or(rope, "beta_slow", 1),
        .attention_factor = optional_double(rope, "attention_factor"),
        .mscale = optional_double(rope, "mscale"),
        .mscale_all_dim = optional_double(rope, "mscale_all_dim"),
        .truncate = bool_or(rope, "truncate", true)};
  }
  if (type == "llama3") {
    return nn::Llama3RopeScaling{
        .factor = factor,
        .low_freq_factor = rope.at("low_freq_factor").as_double(),
        .high_freq_factor = rope.at("high_freq_factor").as_double(),
        .original_max_position_embeddings = original.value_or(context.max_position_embeddings)};
  }
  fail("{}: rope_type: expected default, linear, dynamic, yarn or llama3, found {}", rope.origin(), type);
}

const Node* rope_table_of(const Node& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Node* table = config.find(key);
    if (table != nullptr && !table->is_null() && !table->entries().empty()) {
      return table;
    }
  }
  return nullptr;
}

namespace {
double in_table_or_beside(const Node& config, const char* key, double otherwise) {
  const double beside = double_or(config, key, otherwise);
  const Node* table = rope_table_of(config);
  return table == nullptr ? beside : double_or(*table, key, beside);
}
}  // namespace

double read_rope_theta(const Node& config, double otherwise) {
  return in_table_or_beside(config, "rope_theta", otherwise);
}

double read_partial_rotary_factor(const Node& config, double otherwise) {
  return in_table_or_beside(config, "partial_rotary_factor", otherwise);
}

void check_rope_scaling(const nn::RopeScaling& scaling, double rope_theta, int64_t head_dim, const std::string& where) {
  try {
    nn::RotaryEmbeddingProvider(rope_theta, head_dim, scaling);
  } catch (const Error& error) {
    fail("{}{}", where, error.what());
  }
}

namespace {
struct WriteRopeScaling {
  Node operator()(const nn::NoRopeScaling&) const { return Node(); }
  Node operator()(const nn::LinearRopeScaling& s) const {
    Node node = Node::make_table();
    node.set("rope_type", Node("linear"));
    node.set("factor", Node(s.factor));
    return node;
  }
  Node operator()(const nn::DynamicNtkRopeScaling& s) const {
    Node node = Node::make_table();
    node.set("rope_type", Node("dynamic"));
    node.set("factor", Node(s.factor));
    return node;
  }
  Node operator()(const nn::YarnRopeScaling& s) const {
    Node node = Node::make_table();
    node.set("rope_type", Node("yarn"));
    node.set("factor", Node(s.factor));
    node.set("original_max_position_embeddings", Node(s.original_max_position_embeddings));
    node.set("beta_fast", Node(s.beta_fast));
    node.set("beta_slow", Node(s.beta_slow));
    for (const auto& [key, value] :
         {std::pair{"attention_factor", s.attention_factor},
          std::pair{"mscale", s.mscale},
          std::pair{"mscale_all_dim", s.mscale_all_dim}}) {
      if (value) {
        node.set(key, Node(*value));
      }
    }
    if (!s.truncate) {
      node.set("truncate", Node(false));
    }
    return node;
  }
  Node operator()(const nn::Llama3RopeScaling& s) const {
    Node node = Node::make_table();
    node.set("rope_type", Node("llama3"));
    node.set("factor", Node(s.factor));
    node.set("low_freq_factor", Node(s.low_freq_factor));
    node.set("high_freq_factor", Node(s.high_freq_factor));
    node.set("original_max_position_embeddings", Node(s.original_max_position_embeddings));
    return node;
  }
  Node operator()(const nn::ProportionalRopeScaling& s) const {
    Node node = Node::make_table();
    node.set("rope_type", Node("proportional"));
    if (s.factor != 1) {  // transformers reads it, and warns of it
      node.set("factor", Node(s.factor));
    }
    node.set("partial_rotary_factor", Node(s.partial_rotary_factor));
    return node;
  }
};
}  // namespace

Node write_rope_scaling(const nn::RopeScaling& scaling) {
  return std::visit(WriteRopeScaling{}, scaling);
}

}  // namespace lehr::model
