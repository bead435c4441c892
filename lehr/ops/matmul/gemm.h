// Lehr's GEMM for CPUs, in float32 and bfloat16.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns whether gemm supports these matrices: float32, or bfloat16 on an x86-64; on the CPU (or running on meta),
/// not empty, and with contiguous rows or columns. Without AVX512-BF16, elements of bfloat16 are widened when they are
/// packed, and multiplied in float32.
bool gemm_takes(const at::Tensor& a, const at::Tensor& b);

/// Returns whether gemm_ can write a result of a's type to c: rows are contiguous and do not overlap.
bool gemm_fills(const at::Tensor& c, const at::Tensor& a);

/// Returns a b for a (m, k) and b (k, n). Not differentiable. Each element is summed in float32, in an order that does
/// not depend on the number of threads. Profiles and meters see it as operator lehr::mm.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// Sets c = a b, or c += a b if `add`, for a c (m, n) with contiguous rows: operator lehr::mm_.
void gemm_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace lehr::ops
