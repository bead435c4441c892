// PairProduct by at::native::cpublas::brgemm.
#include "lehr/ops/pair_product.h"

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>

#include <array>

namespace lehr::ops::cpu {

PairProducts::~PairProducts() {
  at::native::cpublas::brgemm_release();
}

bool PairProducts::available() {
  if (!at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  // brgemm throws where it lacks something, and only then.
  static const bool works = [] {
    const PairProducts products;
    const std::array<float, 128> pairs{};  // 16 x 16 in bfloat16
    std::array<float, 256> sums{};
    try {
      product(16, 16, 16, pairs.data(), pairs.data(), sums.data(), false);
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }();
  return works;
}

void PairProducts::product(
    int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add) {
  const auto* left = reinterpret_cast<const at::BFloat16*>(a);
  const auto* right = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(rows, cols, depth, depth, cols, cols, add, left, right, c);
}

}  // namespace lehr::ops::cpu
