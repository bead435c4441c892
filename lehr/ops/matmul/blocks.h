// Matmuls of MKL, divided into blocks by Lehr.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Sets c = a b, or c += a b if `add`, for float32 a (m, k), b (k, n) and c (m, n) on the CPU, by one matmul of ATen,
/// in one thread, per block of c. Bits may depend on the sizes of the blocks, so on the number of threads. Profiles and
/// meters see it as operator lehr::mm_by_blocks_.
///
/// A matmul that MKL divides itself runs on OpenMP's threads: these sleep between two matmuls, while the threads of
/// parallel_for (lehr/base/parallel.h) work, and MKL copies more of a and b.
void multiply_by_blocks(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace lehr::ops
