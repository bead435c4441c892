// The global norm of tensors, and their scaling.
#include "lehr/ops/global_norm/global_norm.h"

#include <cmath>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(GlobalNorm, IsTheNormOfAllElements) {
  everywhere([](at::ScalarType type, const std::string& where) {
    Tensors tensors;
    double square = 0;
    for (const int64_t size : {0, 1, 17, 127, 4099, 200000}) {
      tensors.push_back(random_tensor({size}, type));
      square += tensors.back().to(at::kDouble).square().sum().item<double>();
    }
    tensors.emplace_back();
    tensors.push_back(random_tensor({40, 30}, type).t());
    tensors.push_back(random_tensor({40, 30}, type).slice(1, 0, 30, 3));
    for (size_t i = tensors.size() - 2; i < tensors.size(); ++i) {
      square += tensors[i].to(at::kDouble).square().sum().item<double>();
    }
    const at::Tensor norm = global_norm(tensors);
    EXPECT_EQ(norm.scalar_type(), at::kDouble);
    // Both sum in float64; only the order differs.
    EXPECT_NEAR(norm.item<double>() / std::sqrt(square), 1, 1e-13) << where;
  });
}

TEST(GlobalNorm, DoesNotDependOnTheNumberOfThreads) {
  const Tensors tensors = {random_tensor({300000}, at::kFloat), random_tensor({77777}, at::kBFloat16)};
  const int threads = at::get_num_threads();
  const auto many = global_norm(tensors).item<double>();
  at::set_num_threads(1);
  EXPECT_EQ(global_norm(tensors).item<double>(), many);
  at::set_num_threads(threads);
}

TEST(GlobalNorm, DoesNotOverflowAndPropagatesNaN) {
  EXPECT_EQ(global_norm({at::full({4}, 1e30f)}).item<double>(), 2 * static_cast<double>(1e30f));
  EXPECT_TRUE(std::isnan(global_norm({at::ones({100}), at::full({3}, std::nanf(""))}).item<double>()));
  EXPECT_EQ(global_norm({}).item<double>(), 0);
}

TEST(Scale, MultipliesInPlace) {
  everywhere([](at::ScalarType type, const std::string& where) {
    Tensors tensors = {
        random_tensor({1}, type),
        at::Tensor(),
        random_tensor({70001}, type),
        random_tensor({9, 8}, type).t(),
        random_tensor({9, 8}, type).slice(1, 0, 8, 2),
        random_tensor({0}, type)};
    Tensors expected;
    for (const at::Tensor& tensor : tensors) {
      expected.push_back(tensor.defined() ? tensor * 0.3 : tensor);
    }
    scale_(tensors, at::scalar_tensor(0.3, at::kDouble));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined()) {
        // In some of its loops, ATen rounds a bfloat16 factor to bfloat16.
        EXPECT_LE(worst_error(tensors[i], expected[i]), tolerance(type)) << where << ", tensor " << i;
      }
    }
  });
}

}  // namespace
}  // namespace lehr::ops::test
