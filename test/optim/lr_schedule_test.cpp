// Learning-rate schedules, compared with the expected values in the tests of torchtitan and d9d; refused conflicts.
#include "lehr/optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::optim {
namespace {

std::vector<double> factors(const LRSchedule& schedule, int64_t count) {
  std::vector<double> values;
  for (int64_t step = 0; step < count; ++step) {
    values.push_back(schedule.factor(step));
  }
  return values;
}

void expect_all_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance) << "step " << i;
  }
}

std::string problems_of(const LRSchedulerConfig& config, int64_t steps) {
  Problems problems;
  config.check(problems, steps);
  std::string text;
  for (const auto& item : problems.items()) {
    text += item.key + ": " + item.message + "\n";
  }
  return text;
}

constexpr double kRounding = 1e-12;  // a handful of float64 operations
constexpr double kSixPlaces = 5e-7;  // the expected values have six decimal places

TEST(LRSchedule, DecaysOverEverythingAfterWarmupWithoutADecayRatio) {
  const LRSchedule schedule({.warmup_steps = 2}, 10);
  expect_all_near(factors(schedule, 10), {.5, 1, 1, 7. / 8, 6. / 8, 5. / 8, 4. / 8, 3. / 8, 2. / 8, 1. / 8}, kRounding);
}

TEST(LRSchedule, StaysConstantBetweenWarmupAndDecay) {
  const LRSchedule schedule({.warmup_steps = 2, .decay_ratio = 0.5}, 10);
  expect_all_near(factors(schedule, 10), {.5, 1, 1, 1, 1, 1, .8, .6, .4, .2}, kRounding);
}

TEST(LRSchedule, NeverDecaysWithADecayRatioOfZero) {
  const LRSchedule schedule({.warmup_steps = 2, .decay_ratio = 0.0}, 10);
  expect_all_near(factors(schedule, 12), {.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, kRounding);
}

TEST(LRSchedule, FollowsTheShapeOfTheDecay) {
  const LRSchedule root({.warmup_steps = 0, .decay_type = DecayType::sqrt}, 4);
  expect_all_near(factors(root, 4), {1, 1 - std::sqrt(.25), 1 - std::sqrt(.5), 1 - std::sqrt(.75)}, kRounding);
  const LRSchedule cosine({.warmup_steps = 0, .decay_type = DecayType::cosine, .min_lr_factor = 0.1}, 4);
  expect_all_near(factors(cosine, 3), {1, .1 + .9 * .5 * (1 + std::sqrt(.5)), .1 + .9 * .5}, kRounding);
}

TEST(LRSchedule, LastStepIsAboveTheMinimumAndLaterStepsAreAtIt) {
  const LRSchedule schedule({.warmup_steps = 2, .min_lr_factor = 0.2}, 10);
  EXPECT_NEAR(schedule.factor(9), .2 + .8 / 8, kRounding);
  EXPECT_NEAR(schedule.factor(10), .2, kRounding);
  EXPECT_NEAR(schedule.factor(1000), .2, kRounding);
}

TEST(LRSchedule, TakesItsOwnTotalStepsBeforeThoseOfTheRun) {
  const LRSchedule schedule({.warmup_steps = 0, .total_steps = 4}, 100);
  EXPECT_EQ(schedule.total_steps(), 4);
  expect_all_near(factors(schedule, 6), {1, .75, .5, .25, 0, 0}, kRounding);
}

TEST(LRSchedule, RefusesPhasesThatDoNotFitIntoTheRun) {
  EXPECT_THAT(
      problems_of({.warmup_steps = 10}, 5),
      testing::StartsWith("lr_scheduler.warmup_steps: must not exceed the 5 steps of the run, found 10"));
  EXPECT_THAT(problems_of({}, 5), testing::HasSubstr("found 200, its default; lower it"));
  EXPECT_THAT(
      problems_of({.warmup_steps = 5, .decay_ratio = 0.8}, 10),
      testing::StartsWith("lr_scheduler.decay_ratio: 5 warm-up steps and 8 decay steps"));
  EXPECT_THROW(LRSchedule({.warmup_steps = 10}, 5), Error);
  EXPECT_EQ(problems_of({.warmup_steps = 5, .decay_ratio = 0.5}, 10), "");
  EXPECT_EQ(problems_of({.warmup_steps = 10}, 0), "");  // training.steps reports it
}

TEST(PiecewiseSchedule, RunsAPhaseInStepsThenOneInPercentThenTheRest) {
  LRSchedulerConfig config{.initial_multiplier = 0};
  config.phases = {
      {.mode = PhaseMode::steps, .steps = 2, .target_multiplier = 1.0},
      {.mode = PhaseMode::percentage, .percentage = 0.5, .target_multiplier = 0.1},
      {.mode = PhaseMode::rest, .target_multiplier = 0.01}};
  auto rates = factors(LRSchedule(config, 10), 11);
  for (double& rate : rates) {
    rate *= 0.1;  // the base learning rate of the expected values
  }
  expect_all_near(rates, {0, .05, .1, .07, .04, .01, .0082, .0064, .0046, .0028, .001}, kRounding);
}

TEST(PiecewiseSchedule, WarmsUpThenFallsAlongACosine) {
  LRSchedulerConfig config;
  config.phases = {
      {.mode = PhaseMode::percentage, .percentage = 0.1, .target_multiplier = 1.0},
      {.mode = PhaseMode::rest, .target_multiplier = 0.001, .curve = PhaseCurve::cosine}};
  expect_all_near(
      factors(LRSchedule(config, 20), 21),
      {0,     .5,      1,       .992411, .969876, .93308,  .883139, .821572, .75025,  .671339, .587237,
       .5005, .413763, .329661, .25075,  .179428, .117861, .06792,  .031124, .008589, .001},
      kSixPlaces);
}

TEST(PiecewiseSchedule, EndsAPhaseAtTheNearestStepToItsShare) {
  for (const auto& [percentage, end] : {std::pair(0.29, 29), std::pair(0.57, 57), std::pair(0.58, 58)}) {
    LRSchedulerConfig config{.initial_multiplier = 1};
    config.phases = {
        {.mode = PhaseMode::percentage, .percentage = percentage, .target_multiplier = 1},
        {.mode = PhaseMode::rest, .target_multiplier = 0}};
    const LRSchedule schedule(config, 100);
    EXPECT_EQ(schedule.factor(end), 1) << percentage;
    EXPECT_LT(schedule.factor(end + 1), 1) << percentage;
  }
}

TEST(PiecewiseSchedule, FollowsExponentialAndPolynomialCurves) {
  LRSchedulerConfig config{.initial_multiplier = 1};
  config.phases = {
      {.mode = PhaseMode::steps, .steps = 4, .target_multiplier = 1e-4, .curve = PhaseCurve::exponential},
      {.mode = PhaseMode::rest, .target_multiplier = 1, .curve = PhaseCurve::poly, .power = 3}};
  const LRSchedule schedule(config, 8);
  expect_all_near(factors(schedule, 5), {1, .1, .01, .001, .0001}, kRounding);
  EXPECT_NEAR(schedule.factor(6), 1e-4 + (1 - 1e-4) * .125, kRounding);
  EXPECT_NEAR(schedule.factor(8), 1, kRounding);
}

TEST(PiecewiseSchedule, TreatsAnExponentialFromZeroLikeOneFrom1e8th) {
  LRSchedulerConfig config{.initial_multiplier = 0};
  config.phases = {{.mode = PhaseMode::rest, .target_multiplier = 1, .curve = PhaseCurve::exponential}};
  EXPECT_NEAR(LRSchedule(config, 2).factor(1), 1e-4, kRounding);
}

TEST(PiecewiseSchedule, KeepsItsFirstValueBeforeTheStartAndItsLastAfterTheEnd) {
  LRSchedulerConfig config{.initial_multiplier = 0.3};
  config.phases = {{.mode = PhaseMode::steps, .steps = 2, .target_multiplier = 0.7}};
  const LRSchedule schedule(config, 10);
  EXPECT_NEAR(schedule.factor(-5), .3, kRounding);
  EXPECT_NEAR(schedule.factor(2), .7, kRounding);
  EXPECT_NEAR(schedule.factor(50), .7, kRounding);
}

TEST(PiecewiseSchedule, RefusesContradictoryPhases) {
  LRSchedulerConfig config;
  config.phases = {{.mode = PhaseMode::steps, .steps = 8}, {.mode = PhaseMode::percentage, .percentage = 0.5}};
  EXPECT_THAT(problems_of(config, 10), testing::HasSubstr("would end at step 5, before it begins at step 8"));
  config.phases = {{.mode = PhaseMode::steps, .steps = 11}};
  EXPECT_THAT(problems_of(config, 10), testing::HasSubstr("after the last of 10 steps"));
  config.phases = {{.mode = PhaseMode::rest}, {.mode = PhaseMode::steps, .steps = 1}};
  EXPECT_THAT(problems_of(config, 10), testing::StartsWith("lr_scheduler.phases.0.mode: \"rest\""));
  config.phases = {{.mode = PhaseMode::steps}, {.mode = PhaseMode::percentage, .steps = 3}};
  EXPECT_THAT(
      problems_of(config, 10),
      testing::AllOf(
          testing::HasSubstr("lr_scheduler.phases.0.steps"),
          testing::HasSubstr("lr_scheduler.phases.1.steps"),
          testing::HasSubstr("lr_scheduler.phases.1.percentage")));
}

TEST(LRSchedule, RefusesKeysOfTheOtherKindOfSchedule) {
  const std::vector<SchedulePhaseConfig> phases{{.mode = PhaseMode::rest}};
  EXPECT_EQ(problems_of({.phases = phases}, 10), "");
  EXPECT_EQ(problems_of({.initial_multiplier = 0.5, .phases = phases}, 10), "");
  for (const LRSchedulerConfig& config :
       {LRSchedulerConfig{.warmup_steps = 1, .phases = phases},
        LRSchedulerConfig{.decay_ratio = 0.5, .phases = phases},
        LRSchedulerConfig{.decay_type = DecayType::cosine, .phases = phases},
        LRSchedulerConfig{.min_lr_factor = 0.5, .phases = phases}}) {
    EXPECT_THAT(problems_of(config, 10), testing::HasSubstr("has no effect with `phases`"));
  }
  EXPECT_EQ(
      problems_of({.warmup_steps = 1, .initial_multiplier = 0.5}, 10),
      "lr_scheduler.initial_multiplier: has no effect without `phases`\n");
}

}  // namespace
}  // namespace lehr::optim
