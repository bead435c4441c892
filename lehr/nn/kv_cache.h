// The cache of generation: keys and values, or the state of linear attention.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The cache of one layer. Grows by doubling; holds keys after rotation.
class KeyValueCache {
 public:
  /// Appends new keys and values (B, T, Hkv, D) and returns all, (B, S, Hkv, D) each.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& keys, const at::Tensor& values);

  /// Replaces the states of a layer that keeps no keys (nn::GatedDeltaNet) by those after `tokens` more positions.
  void set_states(std::vector<at::Tensor> states, int64_t tokens) {
    states_ = std::move(states);
    length_ += tokens;
  }
  /// The states that set_states was last called with; empty before the first position.
  const std::vector<at::Tensor>& states() const { return states_; }

  /// Forgets all positions from `length` on, such as those of padding.
  void truncate(int64_t length) { length_ = std::min(length_, length); }
  /// Number of cached positions.
  int64_t length() const { return length_; }

 private:
  at::Tensor keys_, values_;  // (B, capacity, Hkv, D)
  int64_t length_ = 0;
  std::vector<at::Tensor> states_;
};

/// The caches of a model's layers, by index within the stage.
using KeyValueCaches = std::vector<KeyValueCache>;

}  // namespace lehr::nn
