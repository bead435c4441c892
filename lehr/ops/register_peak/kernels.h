// The kernels of multiply-adds in registers.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// The result of a measurement.
struct MultiplyAdded {
  double flops = 0;
  double sum = 0;  // of all lanes of all sums; from it, a test counts the multiply-adds that ran
};

/// On the CPU; T is float, double or Bf16.
template <class T>
struct MultiplyAddKernels {
  static constexpr bool kHasPairs = sizeof(T) == sizeof(Bf16);
  static constexpr bool kHasTiles = kHasPairs;
  /// Runs `rounds` rounds of independent multiply-adds in registers. Every sum starts at 0.5, and a round computes
  /// sum * 0.5 + 0.5; with pairs of bfloat16, sum + 0.5 * 0.5 + 0 * 0; in tiles, sum + 32 * 0.5 * 0.5.
  MultiplyAdded (*multiply_adds)(int64_t rounds);
};

}  // namespace lehr::ops
