// Writes and reads pruning.json.
#include <set>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/config/node_list.h"
#include "lehr/descriptor/block_config_dialects.h"
#include "lehr/prune/pruning.h"
#include "lehr/prune/scores.h"

namespace lehr::prune {

namespace {
using descriptor::Entries;
using descriptor::refuse;

constexpr const char* kAveraged = "averaged_kv_heads";
constexpr const char* kLinear = "linear";
constexpr const char* kWindow = "window";
constexpr const char* kExpertsPerToken = "experts_per_token";

Node to_node(const LayerKeeps& keeps, int64_t layer) {
  Node node = Node::make_table();
  node.set("layer", Node(layer));
  const auto add_halves = [&](const char* key, bool attention, bool ffn) {
    Node halves = Node::make_list();
    if (attention) {
      halves.push_back(Node(name_of(Kind::attention)));
    }
    if (ffn) {
      halves.push_back(Node(name_of(Kind::ffn)));
    }
    if (halves.size() > 0) {
      node.set(key, halves);
    }
  };
  add_halves("drop", keeps.no_attention, keeps.no_ffn);
  add_halves(kLinear, keeps.linear_attention, keeps.linear_ffn);
  const auto add = [&](const char* key, const std::vector<int64_t>& kept) {
    if (!kept.empty()) {
      node.set(key, node_list(kept));
    }
  };
  add(name_of(Kind::ffn_channels), keeps.ffn_channels);
  add(name_of(Kind::kv_heads), keeps.kv_heads);
  if (keeps.averaged_kv_heads > 0) {
    node.set(kAveraged, Node(keeps.averaged_kv_heads));
  }
  if (keeps.window > 0) {
    node.set(kWindow, Node(keeps.window));
  }
  add(name_of(Kind::experts), keeps.experts);
  if (!keeps.expert_channels.empty()) {
    node.set(name_of(Kind::expert_channels), node_list(keeps.expert_channels, [](const auto& kept) {
               return node_list(kept);
             }));
  }
  add(name_of(Kind::shared_channels), keeps.shared_channels);
  if (keeps.experts_per_token > 0) {
    node.set(kExpertsPerToken, Node(keeps.experts_per_token));
  }
  return node;
}

std::vector<int64_t> numbers_of(const Node& list) {
  std::vector<int64_t> numbers;
  for (const Node& number : list.items()) {
    numbers.push_back(number.as_int());
  }
  if (numbers.empty()) {
    refuse(list, "expected the kept indices, found none; omit the key to keep all");
  }
  return numbers;
}

void read_halves(const Node& list, bool& attention, bool& ffn) {
  for (const Node& half : list.items()) {
    const bool is_attention = half.as_string() == name_of(Kind::attention);
    if (!is_attention && half.as_string() != name_of(Kind::ffn)) {
      refuse(half, fmt::format("expected \"attention\" or \"ffn\", found \"{}\"", half.as_string()));
    }
    (is_attention ? attention : ffn) = true;
  }
}

LayerKeeps read_layer(Entries& entries) {
  LayerKeeps keeps;
  if (const Node* drop = entries.get("drop")) {
    read_halves(*drop, keeps.no_attention, keeps.no_ffn);
  }
  if (const Node* linear = entries.get(kLinear)) {
    read_halves(*linear, keeps.linear_attention, keeps.linear_ffn);
  }
  const auto read = [&](Kind kind, std::vector<int64_t>& kept) {
    if (const Node* list = entries.get(name_of(kind))) {
      kept = numbers_of(*list);
    }
  };
  read(Kind::ffn_channels, keeps.ffn_channels);
  read(Kind::kv_heads, keeps.kv_heads);
  read(Kind::experts, keeps.experts);
  read(Kind::shared_channels, keeps.shared_channels);
  if (entries.has(kAveraged)) {
    keeps.averaged_kv_heads = entries.integer(kAveraged);
    if (keeps.averaged_kv_heads < 1) {
      refuse(
          *entries.get(kAveraged),
          fmt::format("expected 1 or more, found {}; omit the key if no heads are averaged", keeps.averaged_kv_heads));
    }
  }
  if (entries.has(kWindow)) {
    keeps.window = entries.integer(kWindow);
    if (keeps.window < 1) {
      refuse(
          *entries.get(kWindow),
          fmt::format("expected 1 or more tokens, found {}; omit the key for the parent's window", keeps.window));
    }
  }
  if (const Node* lists = entries.get(name_of(Kind::expert_channels))) {
    for (const Node& list : lists->items()) {
      keeps.expert_channels.push_back(numbers_of(list));
    }
  }
  if (entries.has(kExpertsPerToken)) {
    keeps.experts_per_token = entries.integer(kExpertsPerToken);
  }
  entries.finish();
  return keeps;
}
}  // namespace

std::string pruning_json(const Pruning& pruning, const std::filesystem::path& parent) {
  Node node = Node::make_table();
  node.set("parent", Node(parent.string()));
  node.set("chosen_by", pruning.facts);
  node.set("scale_pruned_weights", Node(pruning.scale_pruned_weights));
  Node layers = Node::make_list();
  for (size_t layer = 0; layer < pruning.layers.size(); ++layer) {
    if (!pruning.layers[layer].keeps_all()) {
      layers.push_back(to_node(pruning.layers[layer], static_cast<int64_t>(layer)));
    }
  }
  node.set("layers", layers);
  return to_json(node) + "\n";
}

Pruning read_pruning(const std::filesystem::path& file, int64_t num_layers) {
  const Node root = parse_json_file(file);
  Entries entries(root);
  entries.get("parent");
  Pruning pruning;
  pruning.layers.resize(static_cast<size_t>(num_layers));
  if (const Node* facts = entries.get("chosen_by")) {
    pruning.facts = *facts;
  }
  pruning.scale_pruned_weights = entries.flag("scale_pruned_weights");
  entries.get("layers");
  entries.finish();
  std::set<int64_t> seen;
  for (const Node& node : root.at("layers").items()) {
    Entries layer(node);
    const int64_t number = layer.integer("layer");
    if (number < 0 || number >= num_layers || !seen.insert(number).second) {
      refuse(node, fmt::format("layer: expected each of 0 to {} at most once, found {}", num_layers - 1, number));
    }
    pruning.layers[static_cast<size_t>(number)] = read_layer(layer);
  }
  return pruning;
}

}  // namespace lehr::prune
