// PairProduct by at::native::cpublas::brgemm.
#include "lehr/ops/pair_product.h"

#include <ATen/native/CPUBlas.h>

namespace lehr::ops::cpu {

PairProducts::~PairProducts() {
  at::native::cpublas::brgemm_release();
}

void PairProducts::product(
    int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add) {
  const auto* left = reinterpret_cast<const at::BFloat16*>(a);
  const auto* right = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(rows, cols, depth, depth, cols, cols, add, left, right, c);
}

}  // namespace lehr::ops::cpu
