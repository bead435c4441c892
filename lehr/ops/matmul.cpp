// The choice between ATen's matrix product and oneDNN's.
//
// oneDNN's float32 product has no name of its own in ATen, but TorchInductor's fused linear layer is an operator of the
// dispatcher, and with nothing fused it is that product on plain tensors. Where it is missing, at::mm serves.
#include "lehr/ops/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm.h>

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
}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  static const auto linear_pointwise = find_linear_pointwise();
  if (!linear_pointwise || !a.is_cpu() || a.scalar_type() != at::kFloat || b.scalar_type() != at::kFloat ||
      a.numel() == 0 || b.numel() == 0) {
    return at::mm(a, b);
  }
  return linear_pointwise->call(a, b.t(), std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace lehr::ops
