#include "lehr/model/layer_pattern.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

LayerPattern LayerPattern::shifted(int64_t count) const {
  LayerPattern result = *this;
  for (std::vector<bool>* list : {&result.sliding, &result.rotary}) {
    if (!list->empty()) {
      std::rotate(list->begin(), list->end() - count % static_cast<int64_t>(list->size()), list->end());
    }
  }
  return result;
}

LayerPattern with_window(std::optional<int64_t> window) {
  return window ? LayerPattern{.sliding_window = window, .sliding = {true}} : LayerPattern{};
}

std::vector<bool> all_but_every(int64_t interval) {
  std::vector<bool> marked(static_cast<size_t>(interval), true);
  marked.back() = false;
  return marked;
}

std::optional<std::vector<bool>> read_layer_types(
    const Node& config, int64_t num_hidden_layers, const std::string& type, const std::string& expected) {
  const Node* types = config.find("layer_types");
  if (types == nullptr || types->is_null()) {
    return std::nullopt;
  }
  require_size(config.origin() + ": ", "num_hidden_layers", num_hidden_layers, kMostLayers);
  require(
      static_cast<int64_t>(types->items().size()) == num_hidden_layers,
      "{}: layer_types: expected one per layer ({}, num_hidden_layers), found {}",
      config.origin(),
      num_hidden_layers,
      types->size());
  std::vector<bool> found;
  for (const Node& item : types->items()) {
    const std::string name = item.as_string();
    require(
        name == type || name == "full_attention",
        "{}: layer_types[{}]: expected {}, found {}",
        config.origin(),
        found.size(),
        expected,
        name);
    found.push_back(name == type);
  }
  return found;
}

}  // namespace lehr::model
