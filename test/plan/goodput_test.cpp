#include "lehr/plan/goodput.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace lehr::plan {
namespace {

// Trains with random failures until `seconds` are over, and returns the share of time whose results stay.
double simulated(const FailureModel& model, double interval, double seconds) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> failure(1 / model.mtbf);
  double now = 0;
  double useful = 0;
  while (now < seconds) {
    const double fails = failure(random);
    // Save after save, until one is not durable before the failure.
    for (double saved = interval + model.blocked; saved + model.writing <= fails; saved += interval + model.blocked) {
      useful += interval;
    }
    now += fails + model.restart;
  }
  return useful / now;
}

TEST(Goodput, IsThatOfASimulation) {
  for (const FailureModel& model :
       {FailureModel{.mtbf = 10'000, .blocked = 30, .writing = 0, .restart = 300},
        FailureModel{.mtbf = 3'000, .blocked = 10, .writing = 400, .restart = 600},
        FailureModel{.mtbf = 1'000, .blocked = 100, .writing = 50, .restart = 0}}) {
    for (const double interval : {500.0, 1'500.0}) {
      EXPECT_NEAR(model.goodput(interval), simulated(model, interval, 2e4 * model.mtbf), 0.01) << model.mtbf;
    }
  }
}

TEST(Goodput, IsHighestAtTheBestInterval) {
  const FailureModel model{.mtbf = 5'000, .blocked = 60, .writing = 100, .restart = 300};
  const double best = model.best_interval();
  EXPECT_GT(model.goodput(best), model.goodput(0.98 * best));
  EXPECT_GT(model.goodput(best), model.goodput(1.02 * best));
}

TEST(Goodput, TheBestIntervalIsYoungsForRareFailures) {
  const FailureModel model{.mtbf = 1e8, .blocked = 2};
  EXPECT_NEAR(model.best_interval() / std::sqrt(2 * 2 * 1e8), 1, 1e-3);
}

TEST(Goodput, ASaveIsDurableBeforeTheNextOne) {
  const FailureModel model{.mtbf = 1e5, .blocked = 0.001, .writing = 900};
  EXPECT_EQ(model.best_interval(), 900);
}

TEST(FailureModel, AsynchronousSavesOnlyWaitForTheHost) {
  Machine machine{
      .device_mtbf_hours = 1000, .restart_seconds = 7, .host_gb_per_second = 10, .storage_gb_per_second = 1};
  const FailureModel async = failure_model(machine, 100, 20e9, true);
  EXPECT_DOUBLE_EQ(async.mtbf, 36'000);
  EXPECT_DOUBLE_EQ(async.blocked, 2);
  EXPECT_DOUBLE_EQ(async.writing, 20);
  EXPECT_DOUBLE_EQ(async.restart, 7);
  const FailureModel waits = failure_model(machine, 100, 20e9, false);
  EXPECT_DOUBLE_EQ(waits.blocked, 22);
  EXPECT_DOUBLE_EQ(waits.writing, 0);
}

}  // namespace
}  // namespace lehr::plan
