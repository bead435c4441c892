#include "lehr/base/operator_profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/base/operation_meter.h"

namespace lehr {
namespace {

using Clock = std::chrono::steady_clock;

double sum_of_seconds(const OperatorProfile& profile) {
  double sum = 0;
  for (const OperatorTotals& totals : profile.kinds()) {
    sum += totals.seconds;
  }
  return sum;
}

class Profiled {
 public:
  Profiled() { profile.start(); }
  const OperatorTotals& operator()(OperatorKind kind) {
    profile.stop();
    return profile.of(kind);
  }
  OperatorProfile profile;
};

TEST(OperatorProfile, CountsTwoOperationsForEachTermOfAProduct) {
  const at::Tensor a = at::ones({30, 50}), b = at::ones({50, 70});
  Profiled profiled;
  a.mm(b);
  const OperatorTotals products = profiled(OperatorKind::product);
  EXPECT_EQ(products.flops, 2.0 * 30 * 50 * 70);
  EXPECT_EQ(products.bytes, 4.0 * (30 * 50 + 50 * 70 + 30 * 70));
  EXPECT_EQ(products.calls, 1);
  EXPECT_GT(products.seconds, 0);
  const auto& sizes = profiled.profile.products();
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_EQ(sizes.begin()->first, (ProductSize{.m = 30, .k = 50, .n = 70}));
  EXPECT_EQ(sizes.begin()->second.flops, products.flops);
}

TEST(OperatorProfile, CountsProductsOfBackwardAndOfComposedOperators) {
  const at::Tensor a = at::ones({3, 5}).requires_grad_(), b = at::ones({7, 5}).requires_grad_();
  Profiled profiled;
  at::linear(a, b, at::ones({7})).sum().backward();
  EXPECT_EQ(profiled(OperatorKind::product).flops, 3 * 2.0 * 3 * 5 * 7);
}

TEST(OperatorProfile, GivesAllTimeAway) {
  const at::Tensor a = at::ones({200, 200}).requires_grad_();
  double missing = 1;
  for (int attempt = 0; attempt < 10 && missing > 0.01; ++attempt) {  // others may run between the two clocks
    OperatorProfile profile;
    double wall = 0;
    for (int step = 0; step < 3; ++step) {
      const auto begin = Clock::now();
      profile.start();
      a.mm(a).softmax(-1).square().sum().backward();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      profile.stop();
      wall += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    EXPECT_LE(sum_of_seconds(profile), wall);
    EXPECT_GE(profile.of(OperatorKind::between).seconds, 6e-3);  // asleep, no operator ran
    missing = 1 - sum_of_seconds(profile) / wall;
  }
  // start() and stop() add and remove a callback: some microseconds beside 6 ms of sleep at least.
  EXPECT_LT(missing, 0.01);
}

TEST(OperatorProfile, GivesWhatAnOperatorCallsToIt) {
  const at::Tensor a = at::ones({20, 30});
  Profiled profiled;
  {
    const OperatorScope scope(OperatorKind::attention, "lehr::test");
    a.mm(a.t());
    a.add(a);
    {
      const OperatorScope inner(OperatorKind::communication, "lehr::test_inner");
      a.clone();
    }
  }
  EXPECT_EQ(profiled(OperatorKind::attention).flops, 2.0 * 20 * 30 * 20);
  EXPECT_EQ(profiled(OperatorKind::attention).calls, 1);
  EXPECT_EQ(profiled(OperatorKind::communication).calls, 1);
  EXPECT_EQ(profiled(OperatorKind::communication).bytes, 2 * 4.0 * 20 * 30);
  for (const OperatorKind none : {OperatorKind::product, OperatorKind::copy, OperatorKind::other}) {
    EXPECT_EQ(profiled(none).calls, 0) << name_of(none);
  }
}

TEST(OperatorProfile, CountsProductsOfTheLossAsProducts) {
  const at::Tensor a = at::ones({20, 30});
  Profiled profiled;
  {
    const OperatorScope scope(OperatorKind::loss, "lehr::test");
    a.mm(a.t()).exp_();
  }
  EXPECT_EQ(profiled(OperatorKind::product).flops, 2.0 * 20 * 30 * 20);
  EXPECT_EQ(profiled(OperatorKind::loss).bytes, 2 * 4.0 * 20 * 20);
}

TEST(OperatorProfile, CountsBytesOnceAndThoseOfAWholeScopeAsStated) {
  const at::Tensor a = at::ones({8, 8});
  Profiled profiled;
  a.t().contiguous();  // a clone, which is a copy
  at::embedding(a, at::zeros({3}, at::kLong));
  {
    OperatorScope scope(OperatorKind::optimizer, "lehr::test");
    scope.moves(1000);
    a.add(a);
    report_moved({a});
  }
  {
    const OperatorScope scope(OperatorKind::norm, "lehr::test");
    report_pointwise({a, at::Tensor()});
    report_attention(5);
  }
  EXPECT_EQ(profiled(OperatorKind::optimizer).bytes, 1000);
  EXPECT_EQ(profiled(OperatorKind::norm).bytes, 4.0 * 64);
  EXPECT_EQ(profiled(OperatorKind::norm).flops, 5);
  EXPECT_EQ(profiled(OperatorKind::embedding).bytes, 2 * 4.0 * 3 * 8 + 8.0 * 3);  // three rows of the table
  EXPECT_EQ(profiled(OperatorKind::copy).bytes, 2 * 4.0 * 64 + 8.0 * 3);          // and zeros
}

TEST(OperatorProfile, CountsWhatAnOperationMeterCounts) {
  const at::Tensor a = at::ones({6, 6}).requires_grad_();
  const auto work = [&] {
    const at::Tensor b = at::einsum("ij,jk->ik", {a, a});
    at::scaled_dot_product_attention(b.view({1, 1, 6, 6}), a.view({1, 1, 6, 6}), a.view({1, 1, 6, 6}), {}, 0, true)
        .sum()
        .backward();
  };
  double counted = 0;
  {
    const OperationMeter meter;
    work();
    counted = meter.counts().flops();
  }
  Profiled profiled;
  work();
  EXPECT_EQ(profiled(OperatorKind::product).flops + profiled(OperatorKind::attention).flops, counted);
  EXPECT_GT(profiled(OperatorKind::attention).flops, 0);
}

TEST(OperatorProfile, SeesItsOwnThreadOnlyAndDoesNotNest) {
  const at::Tensor a = at::ones({6, 6});
  Profiled profiled;
  std::thread([&] { a.mm(a); }).join();
  OperatorProfile second;
  EXPECT_THROW(second.start(), Error);
  EXPECT_EQ(profiled(OperatorKind::product).calls, 0);
  second.start();
  a.mm(a);
  second.stop();
  EXPECT_EQ(second.of(OperatorKind::product).calls, 1);
}

TEST(OperatorProfile, SurvivesAnExceptionOfAnOperator) {
  const at::Tensor a = at::ones({6, 7});
  Profiled profiled;
  EXPECT_ANY_THROW({
    const OperatorScope scope(OperatorKind::loss, "lehr::test");
    a.mm(a);
  });
  a.add(a);
  EXPECT_EQ(profiled(OperatorKind::other).calls, 1);
}

}  // namespace
}  // namespace lehr
