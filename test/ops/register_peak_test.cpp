// The peak of the registers, against matmuls, which can come close to it and never exceed it.
#include "lehr/ops/register_peak.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/ops/kernels/table.h"

namespace lehr::ops {
namespace {

// Returns the FLOP/s of the best of several matmuls on one thread, each so short that other work seldom interrupts it.
double best_matmul(at::ScalarType dtype) {
  constexpr int64_t kSize = 256;
  double best = 0;
  std::thread([&] {
    run_in_place();
    const at::Tensor a = at::randn({kSize, kSize}, dtype), b = at::randn({kSize, kSize}, dtype);
    for (int i = 0; i < 100; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      at::mm(a, b);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
    }
  }).join();
  return best;
}

// 5 %: the clock rate may rise between the two. 0.3: a library may use half of the width of the registers.
TEST(RegisterPeak, IsNeverExceededByAMatmul) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    double most = 0;
    double least = 10;
    for (int i = 0; i < 3; ++i) {
      const double share = best_matmul(dtype) / register_peak_per_thread(dtype);
      most = std::max(most, share);
      least = std::min(least, share);
    }
    EXPECT_LT(least, 1.05) << c10::toString(dtype);
    EXPECT_GT(most, 0.3) << c10::toString(dtype);
    RecordProperty(c10::toString(dtype), std::to_string(most));
  }
}

// Returns the FLOP/s of Lehr's GEMM kernel on panels in the level-1 cache, on one thread.
double inner_loop() {
  constexpr int64_t kRows = kGemmUnitRows, kColumns = 64, kDepth = 64;  // 40 KiB
  const GemmKernels& gemm = gemm_kernels();
  const at::Tensor a = at::randn({kRows + gemm.rows, kDepth}), b = at::randn({kDepth, kColumns + gemm.columns});
  at::Tensor c = at::zeros({kRows, kColumns});
  const GemmCall call{
      .a = a.const_data_ptr<float>(),
      .b = b.const_data_ptr<float>(),
      .rows = kRows,
      .columns = kColumns,
      .depth = kDepth,
      .from = {},
      .to = {.words = c.data_ptr<float>(), .stride = kColumns}};
  const int64_t panels = (kColumns + gemm.columns - 1) / gemm.columns;
  double best = 0;
  for (int i = 0; i < 200; ++i) {
    constexpr int kCalls = 50;
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < kCalls; ++n) {
      gemm.multiply(call, 0, panels);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, kCalls * 2.0 * kRows * kColumns * kDepth / seconds);
  }
  return best;
}

// The inner loop reaches 0.86 and more of the registers (0.7 leaves room for a clock that changes), and no more than
// all.
TEST(RegisterPeak, IsAboutTheRateOfTheInnerLoopOfAMatmul) {
  double most = 0;
  double least = 10;
  for (int i = 0; i < 3; ++i) {
    const double share = inner_loop() / register_peak_per_thread(at::kFloat);
    most = std::max(most, share);
    least = std::min(least, share);
  }
  EXPECT_LT(least, 1.05);
  EXPECT_GT(most, 0.7);
  RecordProperty("share", std::to_string(most));
}

TEST(RegisterPeak, IsHalfAsHighInFloat64) {
  double least = 10, most = 0;
  for (int i = 0; i < 5; ++i) {
    const double ratio = register_peak_per_thread(at::kFloat) / register_peak_per_thread(at::kDouble);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  // Bounds for a machine whose clock changes; the nearest wrong answers are 1 and 4.
  EXPECT_LT(least, 2.5);
  EXPECT_GT(most, 1.6);
}

TEST(RegisterPeak, OfBfloat16IsAtLeastThatOfFloat32) {
  double most = 0;
  for (int i = 0; i < 3; ++i) {
    most = std::max(most, register_peak_per_thread(at::kBFloat16) / register_peak_per_thread(at::kFloat));
  }
  EXPECT_GT(most, 0.9);
}

TEST(RegisterPeak, IsLowerWithNarrowerRegisters) {
  if (current_arch() == Arch::generic) {
    GTEST_SKIP() << "this CPU has no wider instructions than the generic ones";
  }
  double most = 0;
  for (int i = 0; i < 3; ++i) {
    const double wide = register_peak_per_thread(at::kFloat);
    const ArchScope narrow(Arch::generic);
    most = std::max(most, wide / register_peak_per_thread(at::kFloat));
  }
  EXPECT_GT(most, 1.5);
}

TEST(RegisterPeak, IsOfFloatingTypes) {
  EXPECT_THROW(register_peak_per_thread(at::kLong), Error);
}

}  // namespace
}  // namespace lehr::ops
