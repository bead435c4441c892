#include "lehr/model/cross_layer_inputs.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/descriptor/block_account.h"

namespace lehr::model {

namespace {
constexpr const char* kInputs = "layer_inputs";
// Of layers without a window, and with one.
constexpr std::array kKeys{"keys", "sliding_keys"};
constexpr std::array kValues{"values", "sliding_values"};

at::Tensor found_in(const pipeline::TensorDict& tensors, const char* name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}
}  // namespace

KeyValueRole CrossLayerShape::role(int64_t layer) const {
  const auto reads = [this](int64_t one) {
    return descriptor::reads_keys_and_values(one, num_hidden_layers, num_kv_shared_layers);
  };
  if (reads(layer)) {
    return KeyValueRole::reads;
  }
  for (int64_t later = layer + 1; later < num_hidden_layers && !reads(later); ++later) {
    if (pattern.slides(later) == pattern.slides(layer)) {
      return KeyValueRole::own;
    }
  }
  return num_kv_shared_layers > 0 ? KeyValueRole::stores : KeyValueRole::own;
}

bool CrossLayerShape::passes(bool slides, int64_t boundary) const {
  const auto any = [&](int64_t begin, int64_t end, KeyValueRole wanted) {
    for (int64_t layer = begin; layer < end; ++layer) {
      if (pattern.slides(layer) == slides && role(layer) == wanted) {
        return true;
      }
    }
    return false;
  };
  return any(0, boundary, KeyValueRole::stores) && any(boundary, num_hidden_layers, KeyValueRole::reads);
}

pipeline::TensorDict CrossLayerShape::sent(
    int64_t boundary, int64_t batch, int64_t tokens, int64_t parts, at::ScalarType dtype) const {
  const auto on_meta = [dtype](at::IntArrayRef sizes) {
    return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(dtype));
  };
  pipeline::TensorDict specs;
  if (boundary >= num_hidden_layers) {
    return specs;
  }
  if (hidden_size_per_layer_input > 0) {
    specs[kInputs] = on_meta({batch, tokens / parts, num_hidden_layers - boundary, hidden_size_per_layer_input});
  }
  for (const bool slides : {false, true}) {
    if (passes(slides, boundary)) {
      const Heads& heads = slides ? sliding : full;
      const int64_t mine = std::max<int64_t>(heads.num_key_value_heads / parts, 1);  // which tensor parallelism cuts
      specs[kKeys[slides]] = on_meta({batch, tokens, mine, heads.head_dim});
      specs[kValues[slides]] = on_meta({batch, tokens, mine, heads.head_dim});
    }
  }
  return specs;
}

int64_t most_shared_layers(const LayerPattern& pattern, int64_t layers) {
  int64_t first_of_other_kind = 0;
  for (int64_t layer = 1; layer < layers && first_of_other_kind == 0; ++layer) {
    first_of_other_kind = pattern.slides(layer) != pattern.slides(0) ? layer : 0;
  }
  return std::max<int64_t>(layers - 1 - first_of_other_kind, 0);
}

CrossLayerInputs::CrossLayerInputs(
    const CrossLayerShape& shape,
    int64_t first_layer,
    int64_t tokens,
    const at::Tensor& inputs,
    const pipeline::TensorDict& received)
    : shape_(shape),
      first_layer_(first_layer),
      tokens_(tokens),
      inputs_(inputs.defined() ? inputs : found_in(received, kInputs)) {
  if (inputs_.defined()) {
    input_of_layer_ = inputs_.unbind(2);  // whose backward stacks all gradients once
  }
  for (const size_t kind : {0, 1}) {
    shared_[kind] = {.keys = found_in(received, kKeys[kind]), .values = found_in(received, kValues[kind])};
    without_past_[kind] = shared_[kind].keys.defined();
  }
}

size_t CrossLayerInputs::kind(int64_t index) const {
  return shape_.pattern.slides(index) ? 1 : 0;
}

const nn::KeysAndValues& CrossLayerInputs::read(int64_t index, nn::KeyValueCache* cache) {
  nn::KeysAndValues& shared = shared_[kind(index)];
  require(shared.keys.defined(), "layer {}: expected keys and values of an earlier layer or stage", index);
  if (cache != nullptr && without_past_[kind(index)]) {
    const auto [keys, values] = cache->append(shared.keys, shared.values, shape_.pattern.window(index));
    store(index, keys, values, cache);
    without_past_[kind(index)] = false;
  }
  return shared;
}

void CrossLayerInputs::store(
    int64_t index, const at::Tensor& keys, const at::Tensor& values, const nn::KeyValueCache* cache) {
  const int64_t behind = cache == nullptr ? 0 : cache->length() - keys.size(1);
  shared_[kind(index)] = {.keys = keys, .values = values, .behind = behind};
}

pipeline::TensorDict CrossLayerInputs::sent(int64_t boundary) const {
  pipeline::TensorDict tensors;
  if (boundary >= shape_.num_hidden_layers) {
    return tensors;
  }
  if (inputs_.defined()) {
    const int64_t done = boundary - first_layer_;
    tensors[kInputs] = inputs_.narrow(2, done, inputs_.size(2) - done).contiguous();
  }
  for (const size_t kind : {0, 1}) {
    if (shape_.passes(kind == 1, boundary)) {
      const auto of_new_tokens = [this](const at::Tensor& all) {
        const int64_t past = all.size(1) - tokens_;
        // A node of its own also for what the stage before has sent, whose gradient this stage adds to.
        return (past == 0 ? all.view(all.sizes()) : all.narrow(1, past, tokens_)).contiguous();
      };
      tensors[kKeys[kind]] = of_new_tokens(shared_[kind].keys);
      tensors[kValues[kind]] = of_new_tokens(shared_[kind].values);
    }
  }
  return tensors;
}

}  // namespace lehr::model
