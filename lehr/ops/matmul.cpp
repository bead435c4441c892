// The choice between ATen's matrix product and oneDNN's.
//
// oneDNN's float32 product has no name of its own in ATen, but TorchInductor's fused linear layer is an operator of the
// dispatcher, and with nothing fused it is that product on plain tensors. Where it is missing, at::mm serves.
#include "lehr/ops/matmul.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "lehr/base/on_meta.h"

namespace lehr::ops {

namespace {
using LinearPointwise = at::Tensor(
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>&,
    std::string_view,
    c10::List<std::optional<at::Scalar>>,
    std::optional<std::string_view>);

bool mkl_is_slow_here() {
#ifdef __x86_64__
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

// a b^T, or nothing where the operator is missing.
std::optional<c10::TypedOperatorHandle<LinearPointwise>> find_linear_pointwise() {
  const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!handle || !mkl_is_slow_here()) {
    return std::nullopt;
  }
  return handle->typed<LinearPointwise>();
}

using Handle = std::optional<c10::TypedOperatorHandle<LinearPointwise>>;

// oneDNN's product for these matrices, if it is there and the faster one.
const Handle& onednn_for(const at::Tensor& a, const at::Tensor& b) {
  static const Handle handle = find_linear_pointwise();
  static const Handle none;
  const bool fits = (a.is_cpu() || runs_on_meta()) && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
                    a.numel() > 0 && b.numel() > 0;
  return fits && at::globalContext().userEnabledMkldnn() ? handle : none;
}

at::Tensor call(const Handle& onednn, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_meta()) {
    const at::Tensor copy = a.contiguous();  // which oneDNN makes of a transposed one
    return at::mm(copy, b);
  }
  return onednn->call(a, b.t(), std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

bool multiplies_bfloat16_by_onednn() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// What stands for the workspace of at::mm in bfloat16, which is oneDNN's: blocks of sums in float32 and of the second
// operand, and of a transposed first one, for each thread. How large blocks are is oneDNN's choice; these are its own
// for matrices so small that they count beside tensors (seen in LibTorch 2.11 with AVX-512, on one and two threads).
at::Tensor workspace_on_meta(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 64;
  constexpr int64_t kTerms = 512;
  constexpr int64_t kWorthIt = 16 * 16 * 16;  // multiplications; ATen has a loop of its own for fewer
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
  int64_t bytes = 4 * std::min(m * n, threads * kRows * kColumns) + 2 * threads * terms * kColumns;
  if (!a.is_contiguous()) {
    bytes += 2 * terms * std::min(m, threads * kRows);
  }
  return at::empty({bytes}, a.options().dtype(at::kByte));
}
}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const Handle& onednn = onednn_for(a, b);
  const at::Tensor workspace = workspace_on_meta(a, b);
  return onednn ? call(onednn, a, b) : at::mm(a, b);
}

void add_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kWorthASecondPass = 256;  // terms of each sum, so that adding costs little beside multiplying
  const Handle& onednn = onednn_for(a, b);
  if (!onednn || a.size(1) < kWorthASecondPass) {
    const at::Tensor workspace = workspace_on_meta(a, b);
    sum.addmm_(a, b);
    return;
  }
  constexpr int64_t kSliceBytes = 16 << 20;  // a large sum must not need its own size of memory a second time
  const int64_t row_bytes = b.size(1) * static_cast<int64_t>(b.element_size());
  const int64_t rows = std::max<int64_t>(1, kSliceBytes / row_bytes);
  for (int64_t first = 0; first < a.size(0); first += rows) {
    const int64_t size = std::min(rows, a.size(0) - first);
    sum.narrow(0, first, size).add_(call(onednn, a.narrow(0, first, size), b));
  }
}

}  // namespace lehr::ops
