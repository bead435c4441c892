// Matmuls by the library that is fastest on this CPU.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns the matmul of a (m, k) and b (k, n), of one type, either of which may be a transposed view. Not
/// differentiable.
///
/// ATen runs float32 matmuls in MKL, which uses only 256-bit vectors on CPUs that are not Intel's. There
/// ops/matmul/gemm.h is used instead, and on every x86-64 for bfloat16: oneDNN compiles code for each new shape, and
/// the number of tokens of an expert changes with every call. On Intel's CPUs float32 is MKL's, in blocks
/// (ops/matmul/blocks.h). Everything else is at::mm.
///
/// The choice does not depend on the sizes, so that the number of threads does not change the bits of a training step.
/// With debug.deterministic, gemm multiplies float32 on every CPU with AVX2. Without gradients, callers leave matmuls
/// of few rows by a large weight to ATen (few_rows), in float32 by blocks.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// Sets result = a b, for an allocated result (m, n).
void put_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// Returns whether a matmul of so few rows, without gradients, is ATen's on every CPU: it is bound by reading the
/// weight.
constexpr bool few_rows(int64_t rows) {
  return rows < 16;
}

/// Adds a b to sum (m, n), in place.
void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lehr::ops
