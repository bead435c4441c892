// Choice between ATen's matmul and lehr::gemm.
#include "lehr/ops/matmul/matmul.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "lehr/meter/on_meta.h"
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

bool multiplies_bfloat16_by_onednn() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// Returns a meta tensor of the size of at::mm's workspace in bfloat16, for plans of memory; undefined if there is none.
// oneDNN allocates, per thread, a block of the second operand, one of a transposed first operand, and one of float32
// sums, which AMX keeps in its tiles. The block sizes are oneDNN's for matrices that are so small that the workspace
// matters relative to tensors (observed in LibTorch 2.11 with AVX-512 and with AMX, on one and two threads).
at::Tensor workspace_on_meta(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 64;
  constexpr int64_t kTerms = 512;
  constexpr int64_t kTiles = 5 * 1024;        // bytes per thread, into which AMX tiles are stored
  constexpr int64_t kWorthIt = 16 * 16 * 16;  // multiplications; for fewer, ATen has a loop without oneDNN
  const int64_t m = a.size(0);
  const int64_t k = a.size(1);
  const int64_t n = b.size(1);
  static const bool here = multiplies_bfloat16_by_onednn();
  if (!here || !a.is_meta() || !runs_on_meta() || a.scalar_type() != at::kBFloat16 || m * k * n <= kWorthIt ||
      !at::globalContext().userEnabledMkldnn()) {
    return {};
  }
  const int64_t threads = at::get_num_threads();
  const int64_t terms = std::min(k, kTerms);
  const bool amx = at::native::cpublas::could_pack(at::kBFloat16);
  const int64_t sums = amx ? threads * kTiles : 4 * std::min(m * n, threads * kRows * kColumns);
  int64_t bytes = sums + 2 * threads * terms * kColumns;
  if (!a.is_contiguous()) {
    bytes += 2 * terms * std::min(m, threads * kRows);
  }
  return at::empty({bytes}, a.options().dtype(at::kByte));
}
}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b)) {
    return gemm(a, b);
  }
  const at::Tensor workspace = workspace_on_meta(a, b);
  return at::mm(a, b);
}

void put_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b) && gemm_fills(result, a)) {
    return gemm_(result, a, b, false);
  }
  const at::Tensor workspace = workspace_on_meta(a, b);
  at::Tensor to = result;
  at::mm_out(to, a, b);
}

void add_product_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (by_gemm(a, b) && gemm_fills(sum, a)) {
    return gemm_(sum, a, b, true);
  }
  const at::Tensor workspace = workspace_on_meta(a, b);
  sum.addmm_(a, b);
}

}  // namespace lehr::ops
