// What layers of some families read besides the hidden states: inputs of their own (per-layer embeddings, PLE), and
// keys and values of an earlier layer (KV sharing, cross-layer attention; https://arxiv.org/abs/2405.12981).
#pragma once

#include <array>
#include <vector>

#include "lehr/model/layer_pattern.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/attention.h"
#include "lehr/pipeline/stage.h"

namespace lehr::model {

/// Whether a layer's keys and values are its own, or those of an earlier layer.
enum class KeyValueRole {
  own,     ///< No other layer reads them.
  stores,  ///< They are its own, and later layers of the same kind read them.
  reads,   ///< They are those that an earlier layer stored.
};

/// The sizes of what a model's layers read besides the hidden states. Layers are of two kinds, with a window and
/// without.
struct CrossLayerShape {
  struct Heads {
    int64_t num_key_value_heads = 1;
    int64_t head_dim = 0;
  };
  LayerPattern pattern = {};
  int64_t num_hidden_layers = 0;
  int64_t num_kv_shared_layers = 0;         ///< The last layers, which read keys and values.
  int64_t hidden_size_per_layer_input = 0;  ///< P, the width of a layer's input; 0: there is none.
  Heads sliding = {};
  Heads full = {};

  /// The last layer of each kind before those that read stores its keys and values for those of its kind.
  KeyValueRole role(int64_t layer) const;
  /// Whether keys and values of this kind pass from a layer before `boundary` to `boundary` or a later layer.
  bool passes(bool slides, int64_t boundary) const;
  /// What a stage that ends before layer `boundary` sends besides the hidden states, on meta: of `batch` sequences of
  /// `tokens` positions, of which hidden states hold one of `parts` equal parts (sequence parallelism).
  pipeline::TensorDict sent(int64_t boundary, int64_t batch, int64_t tokens, int64_t parts, at::ScalarType dtype) const;
};

/// Returns the number of layers that may read keys and values: those after the first layer of each kind.
int64_t most_shared_layers(const LayerPattern& pattern, int64_t layers);

/// What the layers of one forward of a stage read, besides the hidden states.
class CrossLayerInputs {
 public:
  /// `inputs` (B, T, L, P) are those of the layers from `first_layer` on, undefined if another stage computed them or
  /// there are none; `received` is what the stage before has sent. `tokens` are the positions of a sequence.
  CrossLayerInputs(
      const CrossLayerShape& shape,
      int64_t first_layer,
      int64_t tokens,
      const at::Tensor& inputs,
      const pipeline::TensorDict& received);

  /// Runs a layer, a module holder with `forward(hidden_states, position_embeddings, attention_mask, cache, input,
  /// keys_and_values)`.
  template <class Layer>
  at::Tensor run(
      nn::ActivationCheckpointing policy,
      int64_t index,
      const Layer& layer,
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& mask,
      nn::KeyValueCache* cache);

  /// What the stage sends to the next one, whose first layer is `boundary`.
  pipeline::TensorDict sent(int64_t boundary) const;

 private:
  // The keys and values of a layer that reads. With a cache, another stage has sent those of the new tokens only, and
  // the first layer that reads them here keeps the others.
  const nn::KeysAndValues& read(int64_t index, nn::KeyValueCache* cache);
  void store(int64_t index, const at::Tensor& keys, const at::Tensor& values, const nn::KeyValueCache* cache);
  size_t kind(int64_t index) const;  // of shared_

  const CrossLayerShape& shape_;
  int64_t first_layer_;
  int64_t tokens_;
  at::Tensor inputs_;                                  // (B, T, L, P)
  std::vector<at::Tensor> input_of_layer_;             // L of (B, T, P)
  std::array<nn::KeysAndValues, 2> shared_;            // of layers without a window, and with one
  std::array<bool, 2> without_past_ = {false, false};  // whether another stage has sent them, without cached tokens
};

template <class Layer>
at::Tensor CrossLayerInputs::run(
    nn::ActivationCheckpointing policy,
    int64_t index,
    const Layer& layer,
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& mask,
    nn::KeyValueCache* cache) {
  const KeyValueRole role = shape_.role(index);
  const at::Tensor input =
      inputs_.defined() ? input_of_layer_.at(static_cast<size_t>(index - first_layer_)) : at::Tensor();
  // Checkpoints save what a layer reads, and differentiate it.
  std::vector<at::Tensor> read_by_layer{hidden_states};
  if (input.defined()) {
    read_by_layer.push_back(input);
  }
  int64_t behind = 0;
  if (role == KeyValueRole::reads) {
    const nn::KeysAndValues& shared = read(index, cache);
    read_by_layer.insert(read_by_layer.end(), {shared.keys, shared.values});
    behind = shared.behind;
  }
  // Captured by value: with activation checkpointing, backward calls this after the frame has ended.
  auto block = [current = layer, position_embeddings, mask, cache, role, behind, has_input = input.defined()](
                   const std::vector<at::Tensor>& x) mutable {
    nn::KeysAndValues own;
    if (role == KeyValueRole::reads) {
      own = {.keys = x.end()[-2], .values = x.end()[-1], .behind = behind};
    }
    nn::KeysAndValues* const shared = role == KeyValueRole::own ? nullptr : &own;
    std::vector<at::Tensor> made{
        current(x[0], position_embeddings, mask, cache, has_input ? x[1] : at::Tensor(), shared)};
    if (role == KeyValueRole::stores) {
      made.insert(made.end(), {own.keys, own.values});
    }
    return made;
  };
  const std::vector<at::Tensor> made =
      cache == nullptr ? nn::run_layer(policy, index, block, read_by_layer) : block(read_by_layer);
  if (role == KeyValueRole::stores) {
    store(index, made[1], made[2], cache);
  }
  return made[0];
}

}  // namespace lehr::model
