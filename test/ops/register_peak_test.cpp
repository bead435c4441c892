// The peak of the registers, against matmuls, which come close to it and do not exceed it.
#include "lehr/ops/register_peak/register_peak.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/base/sanitizer.h"
#include "lehr/ops/matmul/kernels.h"
#include "lehr/ops/register_peak/kernels.h"
#include "test/ops/against_reference.h"

namespace lehr::ops {
namespace {

// A sum is 1 - 0.5^(rounds + 1) after its rounds; with pairs of bfloat16, 0.5 + 0.25 * rounds; in tiles, 0.5 + 8 *
// rounds. So the total of the sums tells how many there are. All these are exact in float32.
template <class T>
void expect_flops_of_the_multiply_adds_that_ran() {
  for (const Arch arch : test::supported_archs()) {
    const bool pairs = std::is_same_v<T, Bf16> && arch >= Arch::avx512_bf16;
    const bool tiles = pairs && arch == Arch::amx;
    const double terms = tiles ? 32 : (pairs ? 2 : 1);  // that one step adds to one sum
    for (int64_t rounds : {1, 2, 5}) {
      const MultiplyAdded done = cpu_kernels<MultiplyAddKernels<T>>(arch).multiply_adds(rounds);
      const auto n = static_cast<double>(rounds);
      const double last = tiles ? 0.5 + 8 * n : (pairs ? 0.5 + 0.25 * n : 1 - std::pow(0.5, n + 1));
      const double sums = done.sum / last;
      EXPECT_EQ(done.flops, 2 * n * sums * terms) << static_cast<int>(arch) << ", " << rounds << " rounds";
    }
  }
}

TEST(RegisterPeak, CountsTheMultiplyAddsThatRan) {
  expect_flops_of_the_multiply_adds_that_ran<float>();
  expect_flops_of_the_multiply_adds_that_ran<double>();
  expect_flops_of_the_multiply_adds_that_ran<Bf16>();
}

// Both sides of a ratio are measured within a few milliseconds of each other, on one thread, and the median of many
// such pairs counts: other work on the machine and a changing clock move both, or few of the pairs. A miscounted
// instruction is wrong by a factor of 2 or more, so the bounds below lie well between such answers and the right one.
constexpr int kPairs = 41;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_now(at::ScalarType dtype) {
  return register_peak_per_thread(dtype, 1e-3);
}

double median_ratio(const std::function<double()>& upper, const std::function<double()>& lower) {
  std::vector<double> ratios(kPairs);
  std::thread([&] {
    run_in_place();
    for (double& ratio : ratios) {
      const double below = lower();
      ratio = upper() / below;
    }
  }).join();
  const auto middle = ratios.begin() + kPairs / 2;
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle;
}

// Returns the FLOP/s of the best of a few matmuls, each so short that other work seldom interrupts it.
double matmul_now(at::ScalarType dtype) {
  constexpr int64_t kSize = 256;
  const at::Tensor a = at::randn({kSize, kSize}, dtype), b = at::randn({kSize, kSize}, dtype);
  double least = 1;
  for (int i = 0; i < 8; ++i) {
    least = std::min(least, seconds_of([&] { at::mm(a, b); }));
  }
  return 2.0 * kSize * kSize * kSize / least;
}

// 0.3: a library may use half of the width of the registers.
TEST(RegisterPeak, IsNotExceededByAMatmul) {
  if (const char* const restricted = std::getenv("LEHR_CPU"); restricted != nullptr && *restricted != '\0') {
    GTEST_SKIP() << "LEHR_CPU=" << restricted << " restricts Lehr's kernels, but in this process not MKL and oneDNN";
  }
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double share = median_ratio([&] { return matmul_now(dtype); }, [&] { return peak_now(dtype); });
    EXPECT_LT(share, 1.3) << c10::toString(dtype);
    // A short matmul is far from the peak of AMX, and from any under a sanitizer.
    if (dtype != at::kBFloat16 && !kSanitized) {
      EXPECT_GT(share, 0.3) << c10::toString(dtype);
    }
    RecordProperty(c10::toString(dtype), std::to_string(share));
  }
}

// Returns the FLOP/s of Lehr's GEMM kernel on panels in the level-1 cache, on one thread.
double inner_loop() {
  constexpr int64_t kRows = kGemmUnitRows, kColumns = 64, kDepth = 64;  // 40 KiB
  const Gemm& gemm = cpu_kernels<GemmKernels<float>>().gemm;
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
  constexpr int kCalls = 50;
  double least = 1;
  for (int i = 0; i < 8; ++i) {
    least = std::min(least, seconds_of([&] {
                       for (int n = 0; n < kCalls; ++n) {
                         gemm.multiply(call, 0, panels);
                       }
                     }));
  }
  return kCalls * 2.0 * kRows * kColumns * kDepth / least;
}

// The inner loop reaches 0.86 and more of the registers.
TEST(RegisterPeak, IsAboutTheRateOfTheInnerLoopOfAMatmul) {
  const double share = median_ratio(inner_loop, [] { return peak_now(at::kFloat); });
  EXPECT_LT(share, 1.3);
  if (!kSanitized) {
    EXPECT_GT(share, 0.6);
  }
  RecordProperty("share", std::to_string(share));
}

#if defined(__x86_64__)
// Multiply-adds of the test's own, in intrinsics: kRounds rounds of kSums, which do not wait for each other, of the
// numbers that the kernel computes, since zeros take less power and may run at a higher clock. The sums are twelve
// variables: an array g++ would keep in memory, where each multiply-add waits for the store before it.
constexpr int64_t kRounds = 20'000, kSums = 12;

#define ADD_TO(SUM, MULTIPLY_ADD) \
  SUM = MULTIPLY_ADD(SUM, a, a);  \
  asm volatile("" : "+x"(SUM)) /* the compiler may not know what it is */

#define OWN_MULTIPLY_ADDS(NAME, TARGET, VECTOR, ALL, MULTIPLY_ADD)                                           \
  __attribute__((target(TARGET), noinline)) void NAME() {                                                    \
    const VECTOR a = ALL(0.5);                                                                               \
    VECTOR s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a; \
    for (int64_t round = 0; round < kRounds; ++round) {                                                      \
      ADD_TO(s0, MULTIPLY_ADD);                                                                              \
      ADD_TO(s1, MULTIPLY_ADD);                                                                              \
      ADD_TO(s2, MULTIPLY_ADD);                                                                              \
      ADD_TO(s3, MULTIPLY_ADD);                                                                              \
      ADD_TO(s4, MULTIPLY_ADD);                                                                              \
      ADD_TO(s5, MULTIPLY_ADD);                                                                              \
      ADD_TO(s6, MULTIPLY_ADD);                                                                              \
      ADD_TO(s7, MULTIPLY_ADD);                                                                              \
      ADD_TO(s8, MULTIPLY_ADD);                                                                              \
      ADD_TO(s9, MULTIPLY_ADD);                                                                              \
      ADD_TO(s10, MULTIPLY_ADD);                                                                             \
      ADD_TO(s11, MULTIPLY_ADD);                                                                             \
    }                                                                                                        \
  }

OWN_MULTIPLY_ADDS(own_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
OWN_MULTIPLY_ADDS(own_avx512_double, "avx512f", __m512d, _mm512_set1_pd, _mm512_fmadd_pd)
OWN_MULTIPLY_ADDS(own_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
OWN_MULTIPLY_ADDS(own_avx2_double, "avx2,fma", __m256d, _mm256_set1_pd, _mm256_fmadd_pd)
#undef ADD_TO
#undef OWN_MULTIPLY_ADDS

// Returns the FLOP/s of the best of a few such loops of the instruction set in use, on one thread.
double own_rate(at::ScalarType dtype) {
  const bool wide = current_arch() >= Arch::avx512, is_double = dtype == at::kDouble;
  const auto loop = wide ? (is_double ? own_avx512_double : own_avx512) : (is_double ? own_avx2_double : own_avx2);
  double least = 1;
  for (int i = 0; i < 8; ++i) {
    least = std::min(least, seconds_of(loop));
  }
  const double lanes = (wide ? 64.0 : 32.0) / (is_double ? 8 : 4);
  return 2 * lanes * kSums * kRounds / least;
}

// 25 %: on a quiet machine the median of the ratios varies by 1 %, but a hypervisor or the other thread of a core may
// take as much for minutes. Repeated, as that may hold for all of a series.
TEST(RegisterPeak, IsTheRateOfTheTestsOwnMultiplyAdds) {
  if (current_arch() < Arch::avx2) {
    GTEST_SKIP() << "this CPU has no wider instructions than the generic ones, for which the test has no loop";
  }
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    double ratio = 0;
    for (int attempt = 0; attempt < 20 && std::abs(ratio - 1) > 0.25; ++attempt) {
      ratio = median_ratio([&] { return peak_now(dtype); }, [&] { return own_rate(dtype); });
    }
    EXPECT_NEAR(ratio, 1, 0.25) << c10::toString(dtype);
  }
}
#endif

TEST(RegisterPeak, IsHalfAsHighInFloat64) {
  const double ratio = median_ratio([] { return peak_now(at::kFloat); }, [] { return peak_now(at::kDouble); });
  EXPECT_LT(ratio, 2.8);
  EXPECT_GT(ratio, 1.4);
}

TEST(RegisterPeak, OfBfloat16IsAtLeastThatOfFloat32) {
  EXPECT_GT(median_ratio([] { return peak_now(at::kBFloat16); }, [] { return peak_now(at::kFloat); }), 0.8);
}

TEST(RegisterPeak, IsLowerWithNarrowerRegisters) {
  if (current_arch() == Arch::generic) {
    GTEST_SKIP() << "this CPU has no wider instructions than the generic ones";
  }
  const auto narrow = [] {
    const ArchScope scope(Arch::generic);
    return peak_now(at::kFloat);
  };
  EXPECT_GT(median_ratio([] { return peak_now(at::kFloat); }, narrow), 1.4);
}

TEST(RegisterPeak, IsOfFloatingTypes) {
  EXPECT_THROW(register_peak_per_thread(at::kLong), Error);
}

}  // namespace
}  // namespace lehr::ops
