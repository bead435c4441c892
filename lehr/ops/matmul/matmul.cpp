// Choice between ATen's matmul, in one or several blocks, and lehr::gemm.
#include "lehr/ops/matmul/matmul.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "lehr/ops/kernels/slot.h"
#include "lehr/ops/matmul/blocks.h"
#include "lehr/ops/matmul/gemm.h"

namespace lehr::ops {

namespace {
bool is_x86() {
#ifdef __x86_64__
  return true;
#else
  return false;
#endif
}

bool has_fast_mkl() {
#ifdef __x86_64__
  return at::hasMKL() && __builtin_cpu_is("intel");
#else
  return false;
#endif
}

enum class Way { aten, blocks, gemm };

// Deterministic runs use gemm on Intel's CPUs, too: how MKL sums depends on the sizes of blocks, and so on the number
// of threads.
Way way_of(const at::Tensor& a, const at::Tensor& b) {
  static const bool fast_mkl = has_fast_mkl(), slow_mkl = is_x86() && !fast_mkl;
  const bool fp32 = a.scalar_type() == at::kFloat;
  const bool wanted = slow_mkl || !fp32 || at::globalContext().deterministicAlgorithms();
  const bool fast = current_arch() != Arch::generic || a.scalar_type() == at::kBFloat16;  // ATen's bfloat16 is slower
  if (wanted && fast && gemm_takes(a, b)) {
    return Way::gemm;
  }
  return fast_mkl && fp32 && a.is_cpu() ? Way::blocks : Way::aten;
}
}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  switch (way_of(a, b)) {
    case Way::gemm:
      return gemm(a, b);
    case Way::aten:
      return at::mm(a, b);
    case Way::blocks:
      break;
  }
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_by_blocks(result, a, b, false);
  return result;
}

void put_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  const Way way = way_of(a, b);
  if (way == Way::gemm && gemm_fills(result, a)) {
    return gemm_(result, a, b, false);
  }
  if (way == Way::blocks) {
    return multiply_by_blocks(result, a, b, false);
  }
  at::Tensor to = result;
  at::mm_out(to, a, b);
}

void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const Way way = way_of(a, b);
  if (way == Way::gemm && gemm_fills(sum, a)) {
    return gemm_(sum, a, b, true);
  }
  if (way == Way::blocks) {
    return multiply_by_blocks(sum, a, b, true);
  }
  sum.addmm_(a, b);
}

}  // namespace lehr::ops
