// AdamW (Loshchilov and Hutter, arXiv 1711.05101), with the operations and roundings of ATen's fused kernel.
#pragma once

#include "lehr/ops/adamw/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

/// Returns a b, rounded: the compiler does not contract the product with a later sum.
LEHR_INLINE FloatVec rounded_product(const FloatVec& a, float b) {
  FloatVec product = a * b;
#ifdef __x86_64__
  asm("" : "+v"(product));
#endif
  return product;
}

template <bool kDivides, bool kFromGrad, class T>
void adamw_with(const AdamWCall<T>& call, int64_t first, int64_t last) {
  const AdamWCall<T> c = call;  // a local copy: the compiler knows that stores below do not change it
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        FloatVec g = load(c.grad + i, count);
        if constexpr (kDivides) {
          g /= c.grad_divisor;
        }
        const FloatVec before = load(c.exp_avg + i, count);
        const FloatVec m = (kFromGrad ? g : before) + c.constants.lerp * (g - before);
        const FloatVec v =
            rounded_product(load(c.exp_avg_sq + i, count), c.constants.beta2) + c.constants.one_minus_beta2 * g * g;
        const FloatVec denominator = square_root(v) / c.root_divisor + c.constants.eps;
        const FloatVec change = c.negative_step_size * m / denominator;
        store(c.value + i, rounded_product(load(c.value + i, count), c.constants.decay) + change, count);
        store(c.exp_avg + i, m, count);
        store(c.exp_avg_sq + i, v, count);
      });
}

template <class T>
void adamw(const AdamWCall<T>& call, int64_t first, int64_t last) {
  const auto kernel = call.grad_divisor != 1
                          ? (call.constants.lerp_from_grad ? adamw_with<true, true, T> : adamw_with<true, false, T>)
                          : (call.constants.lerp_from_grad ? adamw_with<false, true, T> : adamw_with<false, false, T>);
  kernel(call, first, last);
}

template <class T>
constexpr AdamWKernels<T> kAdamW = {.adamw = adamw<T>};

}  // namespace

LEHR_KERNELS(kAdamW<float>)
LEHR_KERNELS(kAdamW<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
