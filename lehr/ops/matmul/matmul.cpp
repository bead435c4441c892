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

// Sets c = a b, or adds a b to it.
void put_or_add(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  const Way way = way_of(a, b);
  if (way == Way::gemm && gemm_fills(c, a)) {
    gemm_(c, a, b, add);
  } else if (way == Way::blocks) {
    multiply_by_blocks(c, a, b, add);
  } else if (add) {
    c.addmm_(a, b);
  } else {
    at::Tensor to = c;
    at::mm_out(to, a, b);
  }
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
  put_or_add(result, a, b, false);
}

void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  put_or_add(sum, a, b, true);
}

}  // namespace lehr::ops
