// The peak of the vector registers: multiply-adds that wait neither for memory nor for each other.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/register_peak/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

// One multiply-add of every lane. It depends on the last sum in both forms, so the compiler cannot take the product out
// of the loop.
LEHR_INLINE FloatVec step_of(const float*, const FloatVec& sum, const FloatVec& a) {
  return sum * a + a;
}
LEHR_INLINE DoubleVec step_of(const double*, const DoubleVec& sum, const DoubleVec& a) {
  return sum * a + a;
}
LEHR_INLINE FloatVec step_of(const Bf16*, FloatVec sum, FloatVec a) {
#ifdef LEHR_PAIRS
  return multiply_add(static_cast<const Bf16*>(nullptr), sum, a, a);
#else
  return sum * a + a;  // bfloat16 is computed in float32
#endif
}

// Runs `rounds` rounds of kSums independent multiply-adds.
template <class T>
MultiplyAdded multiply_adds(int64_t rounds) {
  // A multiply-add takes four or five cycles and two start per cycle, so ten must be in flight. Twelve sums and an
  // operand fit the 16 registers of AVX2.
  constexpr int kSums = 12;
#ifdef LEHR_PAIRS
  constexpr int64_t kProducts = LEHR_VECTOR_BYTES / static_cast<int64_t>(sizeof(T));
#else
  constexpr int64_t kProducts = kLanes<T>;
#endif
  // Unknown to the compiler, which would else compute equal sums once. Small, so that the sums stay finite.
  const volatile Wide<T> unknown = 0.5;
  Vec<T> sums[kSums];
  for (Vec<T>& sum : sums) {
    sum = Vec<T>{} + unknown;
  }
  const Vec<T> a = Vec<T>{} + unknown;
  for (int64_t round = 0; round < rounds; ++round) {
    for (Vec<T>& sum : sums) {
      const Vec<T> last = sum;  // a copy, which gcc keeps in a register
      sum = step_of(static_cast<const T*>(nullptr), last, a);
    }
  }
  Vec<T> total{};
  for (const Vec<T>& sum : sums) {
    total += sum;
  }
  MultiplyAdded done{.flops = 2.0 * kProducts * kSums * static_cast<double>(rounds)};
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    done.sum += static_cast<double>(total[lane]);
  }
  return done;
}

template <class T>
constexpr MultiplyAddKernels<T> kMultiplyAdd = {.multiply_adds = multiply_adds<T>};

}  // namespace

LEHR_KERNELS(kMultiplyAdd<float>)
LEHR_KERNELS(kMultiplyAdd<double>)
LEHR_KERNELS(kMultiplyAdd<Bf16>)
LEHR_PAIR_KERNELS(kMultiplyAdd<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
