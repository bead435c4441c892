// Products of small bfloat16 matrices by oneDNN, whose micro-kernels use AMX where the CPU has it.
#pragma once

#include "lehr/ops/kernels/table.h"

namespace lehr::ops::cpu {

/// While it lives, `product` may be called on the thread that made it.
class PairProducts {
 public:
  PairProducts() = default;
  ~PairProducts();  ///< Gives the thread's tile registers back.
  PairProducts(const PairProducts&) = delete;
  PairProducts& operator=(const PairProducts&) = delete;

  /// Whether `product` can be called: oneDNN is on, and the system lets it use what the CPU has. A container may forbid
  /// AMX that the CPU names.
  static bool available();

  static void product(int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add);
};

}  // namespace lehr::ops::cpu
