// A series in bounded memory: means of equally many neighbours.
#include "lehr/metric/downsampled_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lehr::metric {
namespace {

using testing::ElementsAre;

TEST(DownsampledSeries, KeepsEachPointWhileThereIsRoom) {
  DownsampledSeries series(4);
  for (int64_t step = 1; step <= 4; ++step) {
    series.add(step, 10.0 * static_cast<double>(step));
  }
  EXPECT_THAT(series.steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(series.values(), ElementsAre(10, 20, 30, 40));
}

TEST(DownsampledSeries, MergesNeighboursIntoTheirMean) {
  DownsampledSeries series(4);
  for (int64_t step = 1; step <= 9; ++step) {
    series.add(step, 10.0 * static_cast<double>(step));
  }
  EXPECT_THAT(series.steps(), ElementsAre(2.5, 6.5, 9));
  EXPECT_THAT(series.values(), ElementsAre(25, 65, 90));
}

TEST(DownsampledSeries, HoldsAMillionStepsInItsCapacity) {
  DownsampledSeries series(64);
  for (int64_t step = 1; step <= 1'000'000; ++step) {
    series.add(step, static_cast<double>(step % 2));
  }
  const auto values = series.values();
  EXPECT_LE(values.size(), 64U);
  EXPECT_GE(values.size(), 32U);
  for (const double value : values) {
    EXPECT_NEAR(value, 0.5, 1e-3);
  }
}

TEST(DownsampledSeries, LeavesOutAndCountsWhatIsNotFinite) {
  DownsampledSeries series(4);
  series.add(1, 2);
  series.add(2, std::numeric_limits<double>::quiet_NaN());
  series.add(3, std::numeric_limits<double>::infinity());
  series.add(4, 4);
  EXPECT_THAT(series.steps(), ElementsAre(1, 4));
  EXPECT_EQ(series.not_finite(), 2);
  series.clear();
  EXPECT_TRUE(series.empty());
  EXPECT_EQ(series.not_finite(), 0);
}

}  // namespace
}  // namespace lehr::metric
