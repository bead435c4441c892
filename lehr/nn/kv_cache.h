// Keys and values of earlier tokens, so that generating the next one does not compute them again.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// One layer's cache. Grows by doubling; holds keys after rotation.
class KeyValueCache {
 public:
  /// Puts new keys and values (B, T, Hkv, D) behind the earlier ones and returns all, (B, S, Hkv, D) each.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& keys, const at::Tensor& values);

  /// Number of positions held.
  int64_t length() const { return length_; }

 private:
  at::Tensor keys_, values_;  // (B, capacity, Hkv, D)
  int64_t length_ = 0;
};

/// The caches of a model's layers, by position in the stage.
using KeyValueCaches = std::vector<KeyValueCache>;

}  // namespace lehr::nn
