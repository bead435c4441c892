// Matmuls, by whichever library computes them.
#include "lehr/ops/matmul/matmul.h"

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/kernels/slot.h"
#include "lehr/ops/matmul/blocks.h"
#include "lehr/ops/matmul/gemm.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(Matmul, EqualsFloat64ForAllLayoutsAndSizes) {
  everywhere([](at::ScalarType type, const std::string& what) {
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {7, 17, 127}, {16, 16, 16}, {64, 1, 33}, {127, 96, 513}}) {
      const at::Tensor a = random_tensor({m, k}, type);
      const at::Tensor b = random_tensor({k, n}, type);
      const at::Tensor expected = a.to(at::kDouble).matmul(b.to(at::kDouble));
      for (const at::Tensor& left : {a, a.t().contiguous().t()}) {
        for (const at::Tensor& right : {b, b.t().contiguous().t()}) {
          EXPECT_LE(worst_error(product(left, right), expected), tolerance(type)) << what << " " << m << "x" << n;
          at::Tensor sum = at::ones({m, n}, type);
          add_product_(sum, left, right);
          EXPECT_LE(worst_error(sum, expected + 1), tolerance(type)) << "added, " << what << " " << m << "x" << n;
          const at::Tensor wider = at::full({m + 1, n + 3}, 7, type);
          put_product(wider.narrow(0, 1, m).narrow(1, 2, n), left, right);
          EXPECT_LE(worst_error(wider.narrow(0, 1, m).narrow(1, 2, n), expected), tolerance(type)) << "put, " << what;
          wider.narrow(0, 1, m).narrow(1, 2, n).fill_(7);
          EXPECT_TRUE(wider.eq(7).all().item<bool>()) << "what lies around the result was written, " << what;
        }
      }
    }
  });
}

TEST(Matmul, EqualsATenForPartialAndManyBlocks) {
  constexpr int64_t m = 1056 + 13, n = 2048 + 33, k = 2 * 2048 + 5;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = random_tensor({m, k}, type);
    const at::Tensor b = random_tensor({k, n}, type);
    const at::Tensor expected = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    for (const Arch arch : supported_archs()) {
      const ArchScope scope(arch);
      if (!gemm_takes(a, b)) {
        continue;
      }
      EXPECT_LE(worst_error(gemm(a, b), expected), tolerance(type)) << type;
      EXPECT_LE(worst_error(gemm(a.t().contiguous().t(), b.t().contiguous().t()), expected), tolerance(type)) << type;
      const at::Tensor sum = at::ones({m, n}, type);
      gemm_(sum, a, b, true);
      EXPECT_LE(worst_error(sum, expected + 1), tolerance(type)) << "added, " << type;
    }
  }
}

// Blocks of columns reuse the panels of the first operand, which blocks of rows and of depth must not mix up.
TEST(Matmul, HasTheBitsOfItsBlocksOfColumns) {
  constexpr int64_t kBlock = 2048, n = 2 * kBlock + 33;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, k] : {std::pair<int64_t, int64_t>{61, 70}, {1056 + 13, 1024 + 7}, {30, 2 * 2048 + 5}}) {
      const at::Tensor a = random_tensor({m, k}, type), b = random_tensor({k, n}, type);
      if (!gemm_takes(a, b)) {
        continue;
      }
      const at::Tensor whole = gemm(a, b);
      const at::Tensor sum = at::ones({m, n}, type);
      gemm_(sum, a, b, true);
      for (int64_t first = 0; first < n; first += kBlock) {
        const int64_t size = std::min(kBlock, n - first);
        const at::Tensor part = b.narrow(1, first, size).contiguous();
        EXPECT_TRUE(at::equal(whole.narrow(1, first, size), gemm(a, part))) << type << " " << m << "x" << k;
        const at::Tensor part_sum = at::ones({m, size}, type);
        gemm_(part_sum, a, part, true);
        EXPECT_TRUE(at::equal(sum.narrow(1, first, size), part_sum)) << "added, " << type << " " << m << "x" << k;
      }
    }
  }
}

// Zeros of panels are added to the sums too, and 0 times NaN is NaN.
TEST(Matmul, DependsOnNothingThatPanelsHeldBefore) {
  at::globalContext().setDeterministicAlgorithms(true, false);  // at::empty fills tensors with NaN
  everywhere([](at::ScalarType type, const std::string& what) {
    const at::Tensor a = random_tensor({33, 1043}, type), b = random_tensor({1043, 70}, type);
    for (const at::Tensor& left : {a, a.t().contiguous().t()}) {
      for (const at::Tensor& right : {b, b.t().contiguous().t()}) {
        if (gemm_takes(left, right)) {
          EXPECT_LE(worst_error(gemm(left, right), a.to(at::kDouble).matmul(b.to(at::kDouble))), tolerance(type))
              << what;
        }
      }
    }
  });
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// Rounding a partial sum to bfloat16 would be wrong where large parts cancel.
TEST(Matmul, OfBfloat16IsRoundedOnceForAnyDepth) {
  const at::Tensor a = random_tensor({61, 4101}, at::kBFloat16), b = random_tensor({4101, 70}, at::kBFloat16);
  const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  for (const Arch arch : supported_archs()) {
    const ArchScope scope(arch);
    if (!gemm_takes(a, b)) {
      continue;
    }
    const at::Tensor error = (gemm(a, b).to(at::kDouble) - expected).abs();
    // Half a unit in the last of eight bits, and the error of a float32 sum of 4101 terms around 1.
    EXPECT_TRUE(error.le(expected.abs() / 256 + 1e-3).all().item<bool>()) << error.max();
  }
}

// ATen's matmul in bfloat16 is a plain loop on such CPUs.
TEST(Matmul, OfBfloat16NeedsNoInstructionsForIt) {
#ifndef __x86_64__
  GTEST_SKIP() << "not an x86-64";
#endif
  const at::Tensor a = at::ones({16, 16}, at::kBFloat16);
  for (const Arch arch : {Arch::generic, Arch::avx2, Arch::avx512}) {
    const ArchScope scope(arch);
    EXPECT_TRUE(gemm_takes(a, a) || current_arch() != arch);
  }
}

TEST(Matmul, OfWideningKernelsIsThatOfFloat32RoundedOnce) {
  const ArchScope scope(Arch::avx512);
  const at::Tensor a = random_tensor({61, 4101}, at::kBFloat16), b = random_tensor({4101, 70}, at::kBFloat16);
  if (!gemm_takes(a, b)) {
    GTEST_SKIP() << "not an x86-64";
  }
  EXPECT_TRUE(at::equal(gemm(a, b), gemm(a.to(at::kFloat), b.to(at::kFloat)).to(at::kBFloat16)));
}

TEST(Matmul, AcceptsExpandedOperands) {
  const at::Tensor row = random_tensor({1, 50}, at::kFloat), b = random_tensor({50, 40}, at::kFloat);
  const at::Tensor all = row.expand({33, 50});  // as of the gradient of a sum
  EXPECT_LE(worst_error(product(all, b), at::mm(all.contiguous(), b)), tolerance(at::kFloat));
  EXPECT_LE(worst_error(product(b.t(), all.t()), at::mm(b.t(), all.t().contiguous())), tolerance(at::kFloat));
}

TEST(Matmul, RefusesInvalidOperands) {
  const at::Tensor a = at::ones({4, 6}), b = at::ones({6, 5});
  EXPECT_THROW(gemm(a, at::ones({5, 6})), c10::Error);
  EXPECT_THROW(gemm(a, b.to(at::kDouble)), c10::Error);
  EXPECT_THROW(gemm_(at::ones({4, 4}), a, b, true), c10::Error);
  EXPECT_THROW(gemm_(at::ones({4, 5}, at::kBFloat16), a, b, true), c10::Error);
  EXPECT_THROW(gemm_(at::ones({1, 5}).expand({4, 5}), a, b, true), c10::Error);
}

// Restores the number of threads when the test ends.
class Threads {
 public:
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST(Matmul, HasTheSameBitsOnAnyNumberOfThreads) {
  const Threads threads;
  for (const Arch arch : {Arch::amx, Arch::avx512_bf16, Arch::avx2}) {
    const ArchScope scope(arch);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor a = random_tensor({1101, 2100}, type);
      const at::Tensor b = random_tensor({2100, 217}, type);
      if (!gemm_takes(a, b)) {
        continue;
      }
      at::set_num_threads(1);
      const at::Tensor expected = gemm(a, b);
      for (const int used : {2, 3, 7}) {
        at::set_num_threads(used);
        EXPECT_TRUE(at::equal(gemm(a, b), expected)) << used << " threads, " << type;
      }
    }
  }
}

TEST(Matmul, ByBlocksEqualsFloat64ForAllLayoutsAndNumbersOfThreads) {
  const Threads threads;
  for (const int used : {1, 2, 3, 7}) {
    at::set_num_threads(used);
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {64, 127, 5}, {129, 700, 33}, {1000, 65, 257}}) {
      const at::Tensor a = random_tensor({m, k}, at::kFloat), b = random_tensor({k, n}, at::kFloat);
      const at::Tensor expected = a.to(at::kDouble).matmul(b.to(at::kDouble));
      for (const at::Tensor& left : {a, a.t().contiguous().t()}) {
        for (const at::Tensor& right : {b, b.t().contiguous().t()}) {
          const at::Tensor wider = at::full({m + 1, n + 3}, 7, at::kFloat);
          const at::Tensor inner = wider.narrow(0, 1, m).narrow(1, 2, n);
          multiply_by_blocks(inner, left, right, false);
          EXPECT_LE(worst_error(inner, expected), tolerance(at::kFloat)) << used << " threads, " << m << "x" << n;
          multiply_by_blocks(inner, left, right, true);
          EXPECT_LE(worst_error(inner, 2 * expected), tolerance(at::kFloat)) << "added, " << used << " threads";
          inner.fill_(7);
          EXPECT_TRUE(wider.eq(7).all().item<bool>()) << "what lies around the result was written";
        }
      }
    }
  }
}

TEST(Matmul, ByBlocksIsNoOperationOfAutograd) {
  const at::Tensor a = at::ones({300, 20}).requires_grad_(), b = at::ones({20, 200}).requires_grad_();
  const at::Tensor c = at::empty({300, 200});
  const auto version = c._version();
  multiply_by_blocks(c, a, b, false);
  EXPECT_FALSE(c.requires_grad());
  EXPECT_GT(c._version(), version);
}

// Bytes in addition to the result.
int64_t workspace_of(int64_t m, int64_t k, int64_t n, bool transposed, at::Device device, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  const at::Tensor a = transposed ? at::zeros({k, m}, options).t() : at::zeros({m, k}, options);
  const at::Tensor b = at::zeros({n, k}, options).t();
  const OnMeta on_meta;
  const MemoryMeter meter(device.type());
  const at::Tensor result = product(a, b);
  return meter.peak() - static_cast<int64_t>(result.nbytes());
}

TEST(Matmul, OnMetaHasTheWorkspaceOfPanels) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (!gemm_takes(at::ones({16, 16}, type), at::ones({16, 16}, type))) {
      continue;
    }
    for (const auto& [m, k, n, transposed] :
         {std::tuple{256, 64, 64, false}, {1024, 300, 640, false}, {2500, 5000, 3000, true}}) {
      const int64_t expected = workspace_of(m, k, n, transposed, at::kCPU, type);
      EXPECT_EQ(workspace_of(m, k, n, transposed, at::kMeta, type), expected) << m << "x" << k << "x" << n;
    }
  }
}

TEST(Matmul, IsProfiledByItsSize) {
  const at::Tensor a = at::ones({32, 48}), b = at::ones({48, 64}), sum = at::ones({32, 64});
  OperatorProfile profile;
  profile.start();
  product(a, b);
  add_product_(sum, a, b);
  multiply_by_blocks(sum, a, b, true);
  profile.stop();
  EXPECT_EQ(profile.of(OperatorKind::matmul).flops, 3 * 2.0 * 32 * 48 * 64);
  ASSERT_EQ(profile.products().size(), 1);
  EXPECT_EQ(profile.products().begin()->second.calls, 3);
}

TEST(Matmul, AcceptsEmptyMatrices) {
  EXPECT_TRUE(at::equal(product(at::ones({2, 0}), at::ones({0, 3})), at::zeros({2, 3})));
  EXPECT_EQ(product(at::ones({0, 4}), at::ones({4, 3})).sizes(), (std::vector<int64_t>{0, 3}));
}

}  // namespace
}  // namespace lehr::ops::test
