#include "lehr/nn/kv_cache.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::nn {

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(
    const at::Tensor& keys, const at::Tensor& values, std::optional<int64_t> window) {
  at::NoGradGuard no_grad;
  const int64_t added = keys.size(1);
  first_ = window ? std::max(first_, length_ - (*window - 1)) : first_;
  const int64_t kept = length_ - first_;
  const int64_t capacity = keys_.defined() ? keys_.size(1) : 0;
  if (length_ - base_ + added > capacity) {
    const int64_t needed = kept + added;
    const int64_t room = !window ? 2 * capacity : kept > 0 ? 2 * needed : 0;
    // Into new memory, as copies of a cache share the old one.
    const auto move = [&](at::Tensor& held, const at::Tensor& like) {
      auto shape = like.sizes().vec();
      shape[1] = std::max({needed, room, int64_t{64}});
      at::Tensor larger = at::empty(shape, like.options());
      if (kept > 0) {
        larger.narrow(1, 0, kept).copy_(held.narrow(1, first_ - base_, kept));
      }
      held = larger;
    };
    move(keys_, keys);
    move(values_, values);
    base_ = first_;
  }
  keys_.narrow(1, length_ - base_, added).copy_(keys);
  values_.narrow(1, length_ - base_, added).copy_(values);
  length_ += added;
  const int64_t begin = first_ - base_, count = length_ - first_;
  return {keys_.narrow(1, begin, count), values_.narrow(1, begin, count)};
}

void KeyValueCache::truncate(int64_t length) {
  length_ = std::min(length_, length);
  invariant(length_ >= first_, "cache: position {} is needed, but its window has left it behind", length_);
}

int64_t KeyValueCache::bytes() const {
  return keys_.defined() ? static_cast<int64_t>(keys_.nbytes() + values_.nbytes()) : 0;
}

}  // namespace lehr::nn
