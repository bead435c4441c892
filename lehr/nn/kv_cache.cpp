#include "lehr/nn/kv_cache.h"

#include <algorithm>

namespace lehr::nn {

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& keys, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const int64_t needed = length_ + keys.size(1);
  const int64_t capacity = keys_.defined() ? keys_.size(1) : 0;
  if (needed > capacity) {
    auto grow = [&](at::Tensor& held, const at::Tensor& added) {
      auto shape = added.sizes().vec();
      shape[1] = std::max(needed, std::max<int64_t>(64, 2 * capacity));
      at::Tensor larger = at::empty(shape, added.options());
      if (length_ > 0) {
        larger.narrow(1, 0, length_).copy_(held.narrow(1, 0, length_));
      }
      held = larger;
    };
    grow(keys_, keys);
    grow(values_, values);
  }
  keys_.narrow(1, length_, keys.size(1)).copy_(keys);
  values_.narrow(1, length_, keys.size(1)).copy_(values);
  length_ = needed;
  return {keys_.narrow(1, 0, length_), values_.narrow(1, 0, length_)};
}

}  // namespace lehr::nn
