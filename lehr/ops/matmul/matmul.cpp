// Choice between ATen's matmul and lehr::gemm.
#include "lehr/ops/matmul/matmul.h"

#include <ATen/Context.h>
#include <ATen/ops/mm.h>

#include "lehr/ops/kernels/slot.h"
#include "lehr/ops/matmul/gemm.h"

namespace lehr::ops {

namespace {
bool mkl_is_slow_here() {
#ifdef __x86_64__
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

// Deterministic runs use gemm too: MKL splits the terms of one sum over threads, so its bits depend on their number.
bool by_gemm(const at::Tensor& a, const at::Tensor& b) {
  static const bool slow = mkl_is_slow_here();
  const bool wanted = slow || a.scalar_type() != at::kFloat || at::globalContext().deterministicAlgorithms();
  const bool fast = current_arch() != Arch::generic || a.scalar_type() == at::kBFloat16;  // ATen's bfloat16 is slower
  return wanted && fast && gemm_takes(a, b);
}
}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b)) {
    return gemm(a, b);
  }
  return at::mm(a, b);
}

void put_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b) && gemm_fills(result, a)) {
    return gemm_(result, a, b, false);
  }
  at::Tensor to = result;
  at::mm_out(to, a, b);
}

void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b) && gemm_fills(sum, a)) {
    return gemm_(sum, a, b, true);
  }
  sum.addmm_(a, b);
}

}  // namespace lehr::ops
