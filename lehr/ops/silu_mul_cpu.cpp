// SwiGLU's gate on the CPU.
#include <ATen/ops/empty_like.h>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops::cpu {

namespace {
constexpr int64_t kGrain = 8192;
}

at::Tensor silu_mul_forward(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = at::empty_like(gate);
  report_pointwise({gate, up, y});
  with_element_type(gate.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    run_kernel(gate, 0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernel.silu_mul_forward(elements<T>(gate), elements<T>(up), elements<T>(y), first, last);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> silu_mul_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, bool want_gate, bool want_up) {
  at::Tensor dgate = want_gate ? at::empty_like(gate) : at::Tensor();
  at::Tensor dup = want_up ? at::empty_like(up) : at::Tensor();
  report_pointwise({dy, gate, up, dgate, dup});
  with_element_type(gate.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    run_kernel(gate, 0, gate.numel(), kGrain, [&](int64_t first, int64_t last) {
      kernel.silu_mul_backward(
          elements<T>(dy), elements<T>(gate), elements<T>(up), elements<T>(dgate), elements<T>(dup), first, last);
    });
  });
  return {dgate, dup};
}

}  // namespace lehr::ops::cpu
