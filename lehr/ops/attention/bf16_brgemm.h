// Matmuls of small bfloat16 matrices by oneDNN's BRGEMM micro-kernels, which use AMX if the CPU has it.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops::cpu {

/// While an object exists, `product` may be called on the thread that constructed it.
class Bf16Brgemm {
 public:
  Bf16Brgemm() = default;
  ~Bf16Brgemm();  ///< Releases the thread's AMX tile registers.
  Bf16Brgemm(const Bf16Brgemm&) = delete;
  Bf16Brgemm& operator=(const Bf16Brgemm&) = delete;

  /// Returns whether `product` can be called: oneDNN is enabled, and the system permits the instructions that it chose.
  /// A container may forbid AMX although the CPU reports it.
  static bool available();

  static void product(int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add);
};

}  // namespace lehr::ops::cpu
