#include "lehr/model/layer_pattern.h"

#include <algorithm>

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

}  // namespace lehr::model
