// SwiGLU's gate on the CPU.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/silu_mul/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class T>
void silu_mul_forward(const T* gate, const T* up, T* y, int64_t first, int64_t last) {
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const Vec<T> g = load(gate + i, count);
        store(y + i, g / (exponential(-g) + 1) * load(up + i, count), count);
      });
}

// With s = sigmoid(gate): silu'(gate) = s (1 + gate (1 - s)).
template <class T>
void silu_mul_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t first, int64_t last) {
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const Vec<T> g = load(gate + i, count);
        const Vec<T> incoming = load(dy + i, count);
        const Vec<T> s = splat(static_cast<Wide<T>>(1)) / (exponential(-g) + 1);
        if (dup != nullptr) {
          store(dup + i, incoming * (g * s), count);
        }
        if (dgate != nullptr) {
          store(dgate + i, incoming * load(up + i, count) * (s * (g * (1 - s) + 1)), count);
        }
      });
}

template <class T>
constexpr SiluMulKernels<T> kSiluMul = {.forward = silu_mul_forward<T>, .backward = silu_mul_backward<T>};

}  // namespace

LEHR_KERNELS(kSiluMul<float>)
LEHR_KERNELS(kSiluMul<double>)
LEHR_KERNELS(kSiluMul<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
