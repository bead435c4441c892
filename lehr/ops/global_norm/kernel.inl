// Sums of squares, and scaling, on the CPU.
#pragma once

#include "lehr/ops/global_norm/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Squares of float32 are exact in float64, so the order of the sum matters little. 64 accumulators let the compiler
// vectorize without reordering.
template <class T>
double sum_of_squares(const T* x, int64_t size) {
  double total = 0;
  constexpr int64_t block = 64;
  double lanes[block] = {};
  int64_t i = 0;
  for (; i + block <= size; i += block) {
    for (int64_t j = 0; j < block; ++j) {
      const double value = static_cast<double>(load_one(x + i + j));
      lanes[j] += value * value;
    }
  }
  for (; i < size; ++i) {
    const double value = static_cast<double>(load_one(x + i));
    total += value * value;
  }
  for (int64_t j = 0; j < block; ++j) {
    total += lanes[j];
  }
  return total;
}

template <class T>
void scale(T* x, double factor, int64_t size) {
  const Wide<T> by = static_cast<Wide<T>>(factor);
  for_each_vector<T>(
      size, [&](int64_t i, auto count) __attribute__((always_inline)) {
        store(x + i, load(x + i, count) * by, count);
      });
}

template <class T>
constexpr GlobalNormKernels<T> kGlobalNorm = {.sum_of_squares = sum_of_squares<T>, .scale = scale<T>};

}  // namespace

LEHR_KERNELS(kGlobalNorm<float>)
LEHR_KERNELS(kGlobalNorm<double>)
LEHR_KERNELS(kGlobalNorm<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
