// The key/value cache of generation.
#pragma once

#include <algorithm>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The cache of one layer. Grows by doubling; holds keys after rotation.
class KeyValueCache {
 public:
  /// Appends new keys and values (B, T, Hkv, D) and returns all, (B, S, Hkv, D) each.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& keys, const at::Tensor& values);

  /// Forgets all positions from `length` on, such as those of padding.
  void truncate(int64_t length) { length_ = std::min(length_, length); }
  /// Number of cached positions.
  int64_t length() const { return length_; }

 private:
  at::Tensor keys_, values_;  // (B, capacity, Hkv, D)
  int64_t length_ = 0;
};

/// The caches of a model's layers, by index within the stage.
using KeyValueCaches = std::vector<KeyValueCache>;

}  // namespace lehr::nn
