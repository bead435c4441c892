// The cache of generation: keys and values, or the state of linear attention.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The cache of one layer. Grows by doubling; holds keys after rotation.
class KeyValueCache {
 public:
  /// Appends new keys and values (B, T, Hkv, D) and returns all that are kept, (B, S, Hkv, D) each. With a sliding
  /// window of W tokens, the positions that no new token sees are forgotten first: at most W - 1 of them are left. Then
  /// the memory is that of 2 W tokens, however many are decoded one by one.
  std::pair<at::Tensor, at::Tensor> append(
      const at::Tensor& keys, const at::Tensor& values, std::optional<int64_t> window = {});

  /// Replaces the states of a layer that keeps no keys (nn::HasLinearAttentionCore) by those after `tokens` more
  /// positions.
  void set_states(std::vector<at::Tensor> states, int64_t tokens) {
    states_ = std::move(states);
    length_ += tokens;
  }
  /// The states that set_states was last called with; empty before the first position.
  const std::vector<at::Tensor>& states() const { return states_; }

  /// Forgets all positions from `length` on, such as those of padding. With a window they must be of the last call.
  void truncate(int64_t length);
  /// Number of positions that have passed, with those that a window has left behind.
  int64_t length() const { return length_; }
  /// Bytes that are allocated for keys and values.
  int64_t bytes() const;

 private:
  at::Tensor keys_, values_;  // (B, capacity, Hkv, D)
  int64_t base_ = 0;          // position of their first element
  int64_t first_ = 0;         // the first position that is kept
  int64_t length_ = 0;
  std::vector<at::Tensor> states_;
};

/// The caches of a model's layers, by index within the stage.
using KeyValueCaches = std::vector<KeyValueCache>;

}  // namespace lehr::nn
