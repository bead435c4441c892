// Gradient norms and the clip coefficient, compared with torch's definitions.
#include "lehr/optim/clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lehr/base/error.h"

namespace lehr::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(GlobalNorm, IsTheRootOfTheSumOfAllSquares) {
  const at::Tensor a = at::tensor({3.0, 0.0}, at::kDouble);
  const at::Tensor b = at::tensor({0.0, 4.0, 12.0, 0.0}, at::kDouble).reshape({2, 2});
  const at::Tensor norm = global_norm({a, at::Tensor(), b, at::empty({0}, at::kDouble)});
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_EQ(norm.scalar_type(), at::kDouble);
  EXPECT_DOUBLE_EQ(norm.item<double>(), 13.0);
  EXPECT_DOUBLE_EQ(sum_of_squares({a, b}).item<double>(), 169.0);
}

TEST(GlobalNorm, IsZeroWithoutTensors) {
  EXPECT_EQ(global_norm({}).item<double>(), 0.0);
}

TEST(GlobalNorm, SumsBFloat16InFloat32) {
  const at::Tensor ones = at::ones({1000}, at::kBFloat16);
  // In bfloat16 the norm of each would be 31.625 and the sum of squares 2000.28.
  EXPECT_NEAR(sum_of_squares({ones, ones}).item<double>(), 2000.0, 2000 * 1e-6);  // rounding of one float32 root
}

TEST(ClipDivisor, IsTheInverseOfTorchsQuotientAndNeverBelowOne) {
  const auto divisor = [](double norm) { return clip_divisor(at::tensor(norm, at::kDouble), 0.25).item<double>(); };
  EXPECT_DOUBLE_EQ(divisor(4.0), (4.0 + 1e-6) / 0.25);
  EXPECT_EQ(divisor(0.1), 1.0);
  EXPECT_EQ(divisor(0.0), 1.0);
  EXPECT_EQ(divisor(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(divisor(kNaN)));
  EXPECT_THROW(clip_divisor(at::tensor(1.0, at::kDouble), 0.0), Error);
}

TEST(NonFiniteGradients, StopOrSkipTheStep) {
  EXPECT_TRUE(admit_step(1.0, NonFinitePolicy::stop, 3));
  EXPECT_FALSE(admit_step(kNaN, NonFinitePolicy::skip, 3));
  EXPECT_FALSE(admit_step(kInfinity, NonFinitePolicy::skip, 3));
  try {
    admit_step(kNaN, NonFinitePolicy::stop, 3);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
    EXPECT_THAT(error.what(), testing::StartsWith("step 3: the gradient norm is nan"));
  }
}

}  // namespace
}  // namespace lehr::optim
