// Matrix products, whichever library makes them.
#include "lehr/ops/matmul.h"

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

TEST(Product, TakesEmptyMatrices) {
  EXPECT_TRUE(at::equal(product(at::ones({2, 0}), at::ones({0, 3})), at::zeros({2, 3})));
  EXPECT_EQ(product(at::ones({0, 4}), at::ones({4, 3})).sizes(), (std::vector<int64_t>{0, 3}));
}

}  // namespace
}  // namespace lehr::ops::test
