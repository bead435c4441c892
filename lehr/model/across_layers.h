// What layers of some families read besides the hidden states: inputs of their own, and keys and values of an earlier
// layer.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "lehr/model/layer_pattern.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/attention.h"

namespace lehr::model {

/// Whether a layer's keys and values are its own, or those of an earlier layer.
enum class KeyValueRole {
  own,     ///< No other layer reads them.
  leaves,  ///< Later layers with the same window read them.
  reads,   ///< They are those that an earlier layer left.
};

/// Returns the role of a layer if the last `shared` of `layers` read keys and values. The last layer with a window
/// before them leaves its own to those with a window, and the last one without to the others.
KeyValueRole key_value_role_of(const LayerPattern& pattern, int64_t layer, int64_t layers, int64_t shared);

/// Returns the number of layers that may read keys and values: those after the first layer of each kind.
int64_t most_shared_layers(const LayerPattern& pattern, int64_t layers);

/// Runs the layers of one forward. `Layer` is a module holder with key_value_role() and `forward(hidden_states,
/// position_embeddings, attention_mask, cache, input, keys_and_values)`.
template <class Layer>
class AcrossLayers {
 public:
  /// `inputs` (B, T, L, P) are those of the layers; undefined if there are none.
  AcrossLayers(at::Tensor inputs, const LayerPattern& pattern) : inputs_(std::move(inputs)), pattern_(pattern) {}

  at::Tensor run(
      nn::ActivationCheckpointing policy,
      int64_t index,
      const Layer& layer,
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& mask,
      nn::KeyValueCache* cache) {
    nn::KeysAndValues& shared = shared_[pattern_.slides(index) ? 1 : 0];
    const KeyValueRole role = layer->key_value_role();
    std::vector<at::Tensor> read{hidden_states};
    if (inputs_.defined()) {
      read.push_back(inputs_.select(2, index));
    }
    if (role == KeyValueRole::reads) {
      read.insert(read.end(), {shared.keys, shared.values});
    }
    int64_t behind = shared.behind;
    // Captured by value: with activation checkpointing, backward calls this after the frame has ended.
    auto block =
        [layer, position_embeddings, mask, cache, role, has_input = inputs_.defined(), &behind, known = behind](
            const std::vector<at::Tensor>& x) mutable {
          nn::KeysAndValues own;
          if (role == KeyValueRole::reads) {
            own = {.keys = x.end()[-2], .values = x.end()[-1], .behind = known};
          }
          const at::Tensor output = layer(
              x[0],
              position_embeddings,
              mask,
              cache,
              has_input ? x[1] : at::Tensor(),
              role == KeyValueRole::own ? nullptr : &own);
          if (role != KeyValueRole::leaves) {
            return std::vector<at::Tensor>{output};
          }
          if (cache != nullptr) {
            behind = own.behind;  // caches are not used in training, where the frame may have ended
          }
          return std::vector<at::Tensor>{output, own.keys, own.values};
        };
    const auto made = cache == nullptr ? nn::run_layer(policy, index, block, read) : block(read);
    if (role == KeyValueRole::leaves) {
      shared = {.keys = made[1], .values = made[2], .behind = behind};
    }
    return made[0];
  }

 private:
  at::Tensor inputs_;
  const LayerPattern& pattern_;
  std::array<nn::KeysAndValues, 2> shared_;  // of layers without a window, and with one
};

}  // namespace lehr::model
