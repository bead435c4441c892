// Matrix products, whichever library makes them.
#include "lehr/ops/matmul.h"

#include "lehr/base/memory_meter.h"
#include "lehr/base/on_meta.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(Product, EqualsTheFloat64ProductForAllLayoutsAndSizes) {
  for (const at::ScalarType type : all_types()) {
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {7, 17, 127}, {64, 1, 33}, {127, 96, 256}}) {
      const at::Tensor a = random_tensor({m, k}, type);
      const at::Tensor b = random_tensor({k, n}, type);
      const at::Tensor expected = a.to(at::kDouble).matmul(b.to(at::kDouble));
      for (const at::Tensor& left : {a, a.t().contiguous().t()}) {
        for (const at::Tensor& right : {b, b.t().contiguous().t()}) {
          EXPECT_LE(worst_error(product(left, right), expected), tolerance(type)) << type << " " << m << "x" << n;
          at::Tensor sum = at::ones({m, n}, type);
          add_product_(sum, left, right);
          EXPECT_LE(worst_error(sum, expected + 1), tolerance(type)) << "added, " << type << " " << m << "x" << n;
        }
      }
    }
  }
}

TEST(Product, AddsALargeProductInSlicesThatMakeUpTheWhole) {
  constexpr int64_t kRows = 9001;  // of 2400 bytes: a slice of 16 MiB and a part of one
  for (const bool transposed : {false, true}) {
    const at::Tensor a =
        transposed ? random_tensor({260, kRows}, at::kFloat).t() : random_tensor({kRows, 260}, at::kFloat);
    const at::Tensor b = random_tensor({260, 600}, at::kFloat);
    at::Tensor sum = at::ones({kRows, 600}, at::kFloat);
    add_product_(sum, a, b);
    EXPECT_LE(worst_error(sum, a.to(at::kDouble).matmul(b.to(at::kDouble)) + 1), tolerance(at::kFloat));
  }
}

// Beyond the result. Meters count by thread, and oneDNN asks for all of it in the one that multiplies.
int64_t workspace_of(int64_t m, int64_t k, int64_t n, bool transposed, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device);
  const at::Tensor a = transposed ? at::zeros({k, m}, options).t() : at::zeros({m, k}, options);
  const at::Tensor b = at::zeros({n, k}, options).t();
  const OnMeta on_meta;
  const MemoryMeter meter(device.type());
  const at::Tensor result = product(a, b);
  return meter.peak() - static_cast<int64_t>(result.nbytes());
}

// The sizes of small models, at which it counts beside tensors.
TEST(Product, OnMetaHasTheWorkspaceOfBfloat16) {
  const int threads = at::get_num_threads();
  for (const int used : {1, 2}) {
    at::set_num_threads(used);
    for (const auto& [m, k, n, transposed] :
         {std::tuple{256, 64, 64, false},
          {256, 64, 512, false},
          {1024, 256, 64, false},
          {256, 512, 64, false},
          {512, 256, 64, true},
          {256, 256, 64, true}}) {
      const auto here = static_cast<double>(workspace_of(m, k, n, transposed, at::kCPU));
      const auto on_meta = static_cast<double>(workspace_of(m, k, n, transposed, at::kMeta));
      if (used == 1 && here == 0) {
        GTEST_SKIP() << "bfloat16 is not multiplied by oneDNN here";
      }
      // A kilobyte a thread is its own, and blocks are a little longer than their terms.
      EXPECT_NEAR(on_meta, here, 0.05 * here) << m << "x" << k << "x" << n << " on " << used;
    }
  }
  at::set_num_threads(threads);
}

TEST(Product, TakesEmptyMatrices) {
  EXPECT_TRUE(at::equal(product(at::ones({2, 0}), at::ones({0, 3})), at::zeros({2, 3})));
  EXPECT_EQ(product(at::ones({0, 4}), at::ones({4, 3})).sizes(), (std::vector<int64_t>{0, 3}));
}

}  // namespace
}  // namespace lehr::ops::test
