// Bf16Brgemm by at::native::cpublas::brgemm.
#include "lehr/ops/attention/bf16_brgemm.h"

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>

#include <array>

namespace lehr::ops::cpu {

Bf16Brgemm::~Bf16Brgemm() {
  at::native::cpublas::brgemm_release();
}

bool Bf16Brgemm::available() {
  if (!at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  // brgemm reports missing support only by an exception, so one call finds out.
  static const bool works = [] {
    const Bf16Brgemm products;
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

void Bf16Brgemm::product(
    int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add) {
  const auto* left = reinterpret_cast<const at::BFloat16*>(a);
  const auto* right = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(rows, cols, depth, depth, cols, cols, add, left, right, c);
}

}  // namespace lehr::ops::cpu
