// Matrix products by whichever library is fast on the CPU at hand.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// a b for matrices a (m, k) and b (k, n) of one type, either of which may be a transposed view; not differentiable.
///
/// ATen sends float32 products to MKL, which on CPUs not made by Intel keeps to 256-bit vectors; there ops/gemm.h
/// multiplies them, and bfloat16 where the CPU has AVX512-BF16 but no AMX. Everything else is at::mm.
///
/// Small matrices too, so that the number of threads changes no bit of a training step; with
/// debug.deterministic gemm multiplies float32 on every CPU with AVX2. Where nothing is differentiated, few rows times
/// a large weight are left to ATen: few_rows.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// result = a b, for a result (m, n) that is there already.
void put_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// Whether a product of so many rows, of which no gradient is wanted, is left to ATen: reading the weight once is all
/// that its time goes to.
constexpr bool few_rows(int64_t rows) {
  return rows < 16;
}

/// sum += a b, in place.
void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lehr::ops
