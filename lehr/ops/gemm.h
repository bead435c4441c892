// The product of matrices on the CPU, of our own: of float32, and of bfloat16 where there are instructions for it.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Whether gemm takes these matrices: float32, or bfloat16 with AVX512-BF16 and without AMX, on the CPU (or running on
/// meta), not empty, and either rows or columns contiguous.
bool gemm_takes(const at::Tensor& a, const at::Tensor& b);

/// Whether gemm_ can put a product of a's type into c: rows are contiguous and do not overlap.
bool gemm_fills(const at::Tensor& c, const at::Tensor& a);

/// a b for a (m, k) and b (k, n); not differentiable. Each element is summed up in float32, in the same order whatever
/// the number of threads. In profiles and meters it is the operator lehr::mm.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// c = a b, or c += a b, for a c (m, n) whose rows are contiguous: lehr::mm_.
void gemm_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace lehr::ops
