// Heads in the form that ATen's attention kernels read: of a size that is a multiple of 8, each aligned to 16 bytes.
#pragma once

#include <cstdint>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns `size` rounded up to a multiple of 8.
int64_t padded_size(int64_t size);

/// Returns x (N, H, D) with each head padded by zeros to `size`. Copies x if a head is not aligned to 16 bytes.
at::Tensor padded_heads(const at::Tensor& x, int64_t size);

/// Returns the first `size` elements of each head of x (N, H, D).
at::Tensor cut_heads(const at::Tensor& x, int64_t size);

}  // namespace lehr::ops
