#include "lehr/meter/operator_profile.h"

#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/profile_clock.h"

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

TEST(OperatorProfile, CountsTwoFlopsPerTermOfAMatmul) {
  const at::Tensor a = at::ones({30, 50}), b = at::ones({50, 70});
  Profiled profiled;
  a.mm(b);
  const OperatorTotals products = profiled(OperatorKind::matmul);
  EXPECT_EQ(products.flops, 2.0 * 30 * 50 * 70);
  EXPECT_EQ(products.bytes, 4.0 * (30 * 50 + 50 * 70 + 30 * 70));
  EXPECT_EQ(products.calls, 1);
  EXPECT_GT(products.seconds, 0);
  const auto& sizes = profiled.profile.products();
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_EQ(sizes.begin()->first, (ProductSize{.m = 30, .k = 50, .n = 70}));
  EXPECT_EQ(sizes.begin()->second.flops, products.flops);
}

TEST(OperatorProfile, CountsMatmulsInFloat8ByThemselves) {
  const at::Tensor a = at::ones({16, 32}).to(at::kFloat8_e4m3fn), b = at::ones({16, 32}).to(at::kFloat8_e4m3fn).t();
  const at::Tensor scale = at::ones({}), wide = at::ones({16, 32});
  Profiled profiled;
  at::_scaled_mm(a, b, scale, scale, {}, {}, at::kBFloat16);
  at::mm(wide, wide.t());
  constexpr double kOne = 2.0 * 16 * 32 * 16;
  // On a CPU without float8 matmuls in oneDNN (those with AMX have them), ATen's calls one in float32.
  EXPECT_THAT(profiled(OperatorKind::matmul).flops, testing::AnyOf(2 * kOne, 3 * kOne));
  EXPECT_EQ(profiled(OperatorKind::matmul).float8_flops, kOne);
  EXPECT_EQ(profiled.profile.products().begin()->second.float8_flops, kOne) << "all have one size";
}

TEST(OperatorProfile, CountsMatmulsOfBackwardAndOfComposedOperators) {
  const at::Tensor a = at::ones({3, 5}).requires_grad_(), b = at::ones({7, 5}).requires_grad_();
  Profiled profiled;
  at::linear(a, b, at::ones({7})).sum().backward();
  EXPECT_EQ(profiled(OperatorKind::matmul).flops, 3 * 2.0 * 3 * 5 * 7);
}

TEST(OperatorProfile, AssignsAllTimeToOperators) {
  const at::Tensor a = at::ones({200, 200}).requires_grad_();
  double missing = 1;
  for (int attempt = 0; attempt < 10 && missing > 0.01;
       ++attempt) {  // other processes may run between the two clock readings
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
    EXPECT_GE(profile.of(OperatorKind::between).seconds, 6e-3);  // no operator ran during the sleep
    missing = 1 - sum_of_seconds(profile) / wall;
  }
  // start() and stop() add and remove a callback: some microseconds, compared with at least 6 ms of sleep.
  EXPECT_LT(missing, 0.01);
}

TEST(OperatorProfile, CountsNestedCallsAsPartOfTheOuterOperator) {
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
  for (const OperatorKind none : {OperatorKind::matmul, OperatorKind::copy, OperatorKind::other}) {
    EXPECT_EQ(profiled(none).calls, 0) << name_of(none);
  }
}

TEST(OperatorProfile, CountsMatmulsOfTheLossAsMatmuls) {
  const at::Tensor a = at::ones({20, 30});
  Profiled profiled;
  {
    const OperatorScope scope(OperatorKind::loss, "lehr::test");
    a.mm(a.t()).exp_();
  }
  EXPECT_EQ(profiled(OperatorKind::matmul).flops, 2.0 * 20 * 30 * 20);
  EXPECT_EQ(profiled(OperatorKind::loss).bytes, 2 * 4.0 * 20 * 20);
}

TEST(OperatorProfile, CountsBytesOncePerOperatorAndAsStatedPerScope) {
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
  EXPECT_EQ(profiled(OperatorKind::copy).bytes, 2 * 4.0 * 64 + 8.0 * 3);          // and the zeros
}

TEST(OperatorProfile, CountsTheSameFlopsAsAnOperationMeter) {
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
  EXPECT_EQ(profiled(OperatorKind::matmul).flops + profiled(OperatorKind::attention).flops, counted);
  // A causal mask halves the 6 x 6 pairs; each takes 2 FLOPs per element of q and of v, and backward takes twice that.
  EXPECT_EQ(profiled(OperatorKind::attention).flops, 3 * 0.5 * 6 * 6 * 2 * (6 + 6));
}

TEST(OperatorProfile, SeesItsOwnThreadOnlyAndDoesNotNest) {
  const at::Tensor a = at::ones({6, 6});
  Profiled profiled;
  std::thread([&] { a.mm(a); }).join();
  OperatorProfile second;
  EXPECT_THROW(second.start(), Error);
  EXPECT_EQ(profiled(OperatorKind::matmul).calls, 0);
  second.start();
  a.mm(a);
  second.stop();
  EXPECT_EQ(second.of(OperatorKind::matmul).calls, 1);
}

// A device whose queue reaches one mark per second, and which is idle for a minute between two profiled stretches.
class FakeDevice : public ProfileClock {
 public:
  void start() override { now_ += 60; }
  size_t mark() override {
    marks_.push_back(now_++);
    return marks_.size() - 1;
  }
  void wait() override { reached_ = marks_.size(); }
  double seconds(size_t begin, size_t end) const override {
    EXPECT_LT(begin, end);
    EXPECT_LT(end, reached_) << "asked before the device was there";
    return marks_[end] - marks_[begin];
  }

 private:
  double now_ = 0;
  std::vector<double> marks_;
  size_t reached_ = 0;
};

TEST(OperatorProfile, TakesTimesOfADeviceFromItsMarksOnceTheyAreReached) {
  const at::Tensor a = at::ones({6, 6});
  OperatorProfile profile(std::make_unique<FakeDevice>());
  for (int stretch = 1; stretch <= 2; ++stretch) {
    profile.start();
    a.mm(a);  // one mark before it and one behind it, and none for nested calls
    {
      const OperatorScope scope(OperatorKind::norm, "lehr::test");
      a.add(a);  // counted under the scope's kind, so it gets no mark of its own
    }
    profile.stop();
    EXPECT_EQ(profile.of(OperatorKind::matmul).seconds, stretch);
    EXPECT_EQ(profile.products().begin()->second.seconds, stretch);
    EXPECT_EQ(profile.of(OperatorKind::norm).seconds, stretch);
    EXPECT_EQ(profile.of(OperatorKind::between).seconds, 3 * stretch);
    EXPECT_EQ(sum_of_seconds(profile), 5 * stretch) << "the minute before is nobody's";
  }
}

TEST(OperatorProfile, KeepsBackwardOnTheCallingThreadAndRestoresTheSetting) {
  auto& autograd = c10::AutogradState::get_tls_state();
  ASSERT_TRUE(autograd.get_multithreading_enabled());
  {
    Profiled profiled;
    EXPECT_FALSE(autograd.get_multithreading_enabled()) << "an accelerator's would run on a thread of its own";
    profiled(OperatorKind::matmul);
    EXPECT_TRUE(autograd.get_multithreading_enabled());
  }
  autograd.set_multithreading_enabled(false);
  Profiled()(OperatorKind::matmul);
  EXPECT_FALSE(autograd.get_multithreading_enabled());
  autograd.set_multithreading_enabled(true);
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
