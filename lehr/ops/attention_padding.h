// Heads in the form that ATen's attention kernels read: of a size that is a multiple of 8, each aligned to 16 bytes.
#pragma once

#include <ATen/ops/constant_pad_nd.h>

#include <cstdint>

#include "lehr/base/torch.h"

namespace lehr::ops {

inline constexpr int64_t kHeadStep = 8;

/// Returns `size` rounded up to a multiple of 8.
inline int64_t padded_size(int64_t size) {
  return (size + kHeadStep - 1) / kHeadStep * kHeadStep;
}

/// Returns x (N, H, D) with zeros behind each head up to `size`, copied if a head is not aligned to 16 bytes.
inline at::Tensor padded_heads(const at::Tensor& x, int64_t size) {
  if (x.size(2) < size) {
    return at::constant_pad_nd(x, {0, size - x.size(2)});  // zeros do not change scores, and are cut off the outputs
  }
  const bool aligned = x.stride(2) == 1 && x.stride(1) % kHeadStep == 0 && x.stride(0) % kHeadStep == 0 &&
                       reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return aligned ? x : x.clone(at::MemoryFormat::Contiguous);
}

/// Returns the first `size` elements of each head of x (N, H, D).
inline at::Tensor cut_heads(const at::Tensor& x, int64_t size) {
  return x.narrow(2, 0, size).contiguous();
}

}  // namespace lehr::ops
