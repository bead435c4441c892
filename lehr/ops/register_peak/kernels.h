// Multiply-adds in registers.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

template <class T>
struct MultiplyAddKernels {
  static constexpr bool kHasPairs = sizeof(T) == sizeof(Bf16);
  /// Runs `rounds` rounds of independent multiply-adds in registers, and returns their FLOPs.
  double (*multiply_adds)(int64_t rounds);
};

/// Returns multiply_adds in AMX's tiles; null if this CPU has none, or the system does not permit them, as in some
/// containers.
double (*tile_multiply_adds(Arch arch = current_arch()))(int64_t rounds);

}  // namespace lehr::ops
