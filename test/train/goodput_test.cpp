#include "lehr/train/goodput.h"

#include <gmock/gmock.h>

#include "test/train/support.h"

namespace lehr::train {
namespace {

using ::testing::HasSubstr;

TEST(Goodput, TheSharesAddUpToTheTimeOfTheStart) {
  Goodput goodput;
  goodput.started(2);
  for (int i = 0; i < 8; ++i) {
    goodput.step(10);
  }
  goodput.paused(TimeLeft::Pause::validation, 4);
  goodput.paused(TimeLeft::Pause::validation, 6);
  goodput.paused(TimeLeft::Pause::save, 5);
  goodput.waited_for_data(3);
  goodput.waited_for_data(4);
  const std::string text = goodput.describe(100);
  EXPECT_THAT(text, ::testing::StartsWith("73.0 % of "));
  EXPECT_THAT(
      text,
      ::testing::EndsWith(
          " in steps; before the first step 2.0 %, waiting for data 7.0 %, validations 10.0 %, saves 5.0 %, other 3.0 %"));
}

TEST(Goodput, AValidationBeforeTheFirstStepCountsOnce) {
  Goodput goodput;
  goodput.paused(TimeLeft::Pause::validation, 20);
  goodput.paused(TimeLeft::Pause::save, 5);
  goodput.started(30);
  goodput.step(70);
  EXPECT_THAT(
      goodput.describe(100),
      ::testing::EndsWith(" in steps; before the first step 5.0 %, validations 20.0 %, saves 5.0 %"));
}

TEST(Goodput, KindsWithoutTimeAreLeftOut) {
  Goodput goodput;
  goodput.step(50);
  EXPECT_THAT(goodput.describe(50), ::testing::EndsWith(" in steps"));
}

TEST(Goodput, ARunMeasuresItsStepsAndPauses) {
  const testing::Folder folder;
  const auto config =
      testing::tiny_run(folder.path(), {{"metrics.prometheus", "\"" + (folder.path() / "lehr.prom").string() + "\""}});
  ::testing::internal::CaptureStderr();
  {
    Logger log("", false);
    const auto list = testing::specs();
    Trainer(config, {.specs = list, .log = log}).run();
  }
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(output, ::testing::ContainsRegex("goodput    [0-9.]+ % of .* in steps; .*validations"));
  const std::string gauges = read_file(folder.path() / "lehr.prom");
  EXPECT_THAT(gauges, HasSubstr("lehr_step{job=\"a training run\"} 12\n"));
  EXPECT_THAT(gauges, HasSubstr("# TYPE lehr_seconds_left gauge\n"));
  EXPECT_THAT(gauges, HasSubstr("lehr_loss{"));
}

TEST(Goodput, APrometheusFileThatCannotBeWrittenIsNoReasonToStop) {
  const testing::Folder folder;
  const auto config = testing::tiny_run(folder.path(), {{"metrics.prometheus", "\"/proc/no/such.prom\""}});
  EXPECT_EQ(testing::train(config).step, 12);
}

}  // namespace
}  // namespace lehr::train
