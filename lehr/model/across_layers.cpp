#include "lehr/model/across_layers.h"

#include <algorithm>

namespace lehr::model {

KeyValueRole key_value_role_of(const LayerPattern& pattern, int64_t layer, int64_t layers, int64_t shared) {
  const int64_t first = layers - shared;
  if (layer >= first) {
    return KeyValueRole::reads;
  }
  for (int64_t later = layer + 1; later < first; ++later) {
    if (pattern.slides(later) == pattern.slides(layer)) {
      return KeyValueRole::own;
    }
  }
  return shared > 0 ? KeyValueRole::leaves : KeyValueRole::own;
}

int64_t most_shared_layers(const LayerPattern& pattern, int64_t layers) {
  int64_t last_of_first = 0;
  for (int64_t layer = 1; layer < layers; ++layer) {
    if (pattern.slides(layer) != pattern.slides(0)) {
      last_of_first = layer;
      break;
    }
  }
  return std::max<int64_t>(layers - 1 - last_of_first, 0);
}

}  // namespace lehr::model
