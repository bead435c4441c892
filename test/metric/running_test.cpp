// Running statistics: values, merging as across ranks, and saved state.
#include "lehr/metric/running.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::metric {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(WeightedMean, DividesByTheWeights) {
  WeightedMean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  mean.add(2.0, 3.0);
  mean.add(6.0);
  EXPECT_EQ(mean.value(), 3.0);
  EXPECT_EQ(mean.weight(), 4.0);
}

TEST(WeightedMean, IgnoresValuesWithoutWeight) {
  WeightedMean mean;
  mean.add(kNaN, 0.0);
  mean.add(5.0, 2.0);
  EXPECT_EQ(mean.value(), 5.0);
}

TEST(WeightedMean, MergesRanksToTheMeanOfAllValues) {
  WeightedMean one, two, all;
  for (int i = 0; i < 10; ++i) {
    (i < 4 ? one : two).add(i, i + 1);
    all.add(i, i + 1);
  }
  one.merge(two);
  EXPECT_EQ(one.value(), all.value());  // whole numbers: no rounding
}

TEST(RunningMax, KeepsTheMaximumAndNaN) {
  RunningMax max;
  EXPECT_EQ(max.value(), -std::numeric_limits<double>::infinity());
  max.add(-3);
  max.add(-7);
  EXPECT_EQ(max.value(), -3);
  RunningMax other;
  other.add(2);
  max.merge(other);
  EXPECT_EQ(max.value(), 2);
  max.add(kNaN);
  max.add(100);
  EXPECT_TRUE(std::isnan(max.value()));
}

TEST(RunningMetrics, ContinueFromTheirState) {
  WeightedMean mean;
  mean.add(0.1, 3);
  WeightedMean mean_again;
  mean_again.load_state(mean.state());
  EXPECT_EQ(mean_again.value(), mean.value());

  RunningSum sum;
  sum.add(0.1);
  sum.add(0.2);
  RunningSum sum_again;
  sum_again.load_state(sum.state());
  EXPECT_EQ(sum_again.value(), 0.1 + 0.2);

  RunningCount count;
  count.add((1LL << 53) - 1);
  RunningCount count_again;
  count_again.load_state(count.state());
  EXPECT_EQ(count_again.value(), (1LL << 53) - 1);

  RunningMax max;
  max.add(4);
  RunningMax max_again;
  max_again.load_state(max.state());
  EXPECT_EQ(max_again.value(), 4);
}

TEST(RunningMetrics, RefuseTheStateOfOtherMetrics) {
  WeightedMean mean;
  EXPECT_THROW(mean.load_state({1.0}), Error);
  RunningCount count;
  EXPECT_THROW(count.load_state({1.5}), Error);
  EXPECT_THROW(count.load_state({kNaN}), Error);
  EXPECT_THROW(count.load_state({1e300}), Error);
}

TEST(RunningMetrics, StartOverAfterAReset) {
  RunningCount count;
  count.add(3);
  count.reset();
  EXPECT_EQ(count.value(), 0);
}

}  // namespace
}  // namespace lehr::metric
