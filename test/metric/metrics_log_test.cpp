// metrics.jsonl: exact numbers, and truncation on resume.
#include "lehr/metric/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "lehr/base/error.h"
#include "test/base/error_of.h"

namespace lehr::metric {
namespace {

class MetricsLogTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("lehr_metrics_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    path_ = folder_ / "run" / "metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& text) const {
    std::filesystem::create_directories(path_.parent_path());
    std::ofstream(path_, std::ios::binary) << text;
  }
  std::string error_on_open(int64_t resume_step) const {
    return any_error::error_of([&] { const MetricsLog log(path_, resume_step); });
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(MetricsLogTest, WritesOneObjectPerLineInTheGivenOrder) {
  MetricsLog log(path_, -1);
  log.write(1, {{"loss", 2.5}, {"num_tokens", int64_t{4096}}, {"note", "a \"b\"\n"}});
  log.write(2, {{"loss", 0.1}});
  EXPECT_EQ(
      content(),
      "{\"step\":1,\"loss\":2.5,\"num_tokens\":4096,\"note\":\"a \\\"b\\\"\\n\"}\n"
      "{\"step\":2,\"loss\":0.1}\n");
}

TEST_F(MetricsLogTest, KeepsEveryBitOfEveryNumber) {
  const std::vector<double> numbers = {
      0.1, 1.0 / 3, 1e-300, -2.2250738585072014e-308, 4.9e-324, 12345678901234567.0, 1.7976931348623157e308, -0.0};
  {
    MetricsLog log(path_, -1);
    for (size_t i = 0; i < numbers.size(); ++i) {
      log.write(static_cast<int64_t>(i), {{"loss", numbers[i]}});
    }
  }
  const MetricSeries series = read_metric(path_, "loss");
  ASSERT_EQ(series.values.size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(series.values[i], numbers[i]);
    EXPECT_EQ(std::signbit(series.values[i]), std::signbit(numbers[i]));
    EXPECT_EQ(series.steps[i], static_cast<double>(i));
  }
}

TEST_F(MetricsLogTest, WritesNullForNonFiniteNumbers) {
  MetricsLog log(path_, -1);
  log.write(
      1, {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"grad_norm", std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(content(), "{\"step\":1,\"loss\":null,\"grad_norm\":null}\n");
  EXPECT_TRUE(read_metric(path_, "loss").values.empty());
}

TEST_F(MetricsLogTest, EqualsAnUninterruptedRunAfterAResume) {
  const auto write_steps = [](MetricsLog& log, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      log.write(step, {{"loss", 1.0 / static_cast<double>(step)}});
    }
  };
  {
    MetricsLog log(path_, -1);
    write_steps(log, 1, 20);
  }
  const std::string whole = content();
  {
    MetricsLog log(path_, -1);
    write_steps(log, 1, 13);
  }
  put(content() + "{\"step\":14,\"lo");  // killed while writing
  {
    MetricsLog log(path_, 10);
    EXPECT_EQ(read_metric(path_, "loss").steps.back(), 10);
    write_steps(log, 11, 20);
  }
  EXPECT_EQ(content(), whole);
}

TEST_F(MetricsLogTest, StartsANewFileWithMinusOne) {
  put("{\"step\":0,\"validation_loss\":3}\n{\"step\":1,\"loss\":2}\n");
  const MetricsLog log(path_, -1);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsLogTest, TruncatesAnIncompleteLastLine) {
  put("{\"step\":1,\"loss\":2}\n" + std::string(40, '\0') + "\n{\"st\n");
  const MetricsLog log(path_, 5);
  EXPECT_EQ(content(), "{\"step\":1,\"loss\":2}\n");
}

TEST_F(MetricsLogTest, RefusesAFileOfAnotherFormatAndKeepsIt) {
  const std::string text = "{\"step\":1}\nnotes of mine\n{\"step\":3}\n";
  put(text);
  EXPECT_THAT(error_on_open(1), testing::HasSubstr("metrics.jsonl, line 2: expected a JSON object with an integer"));
  EXPECT_EQ(content(), text);
}

TEST_F(MetricsLogTest, ReportsAFileThatCannotBeWritten) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "run") << "a file where the folder should be";
  EXPECT_THAT(error_on_open(-1), testing::HasSubstr("the folder cannot be created"));
}

TEST_F(MetricsLogTest, RefusesANameGivenTwice) {
  MetricsLog log(path_, -1);
  EXPECT_THROW(log.write(1, {{"step", int64_t{2}}}), Error);
  EXPECT_THROW(log.write(1, {{"loss", 1.0}, {"loss", 2.0}}), Error);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsLogTest, ReadsNothingFromAMissingFile) {
  EXPECT_TRUE(read_metric(path_, "loss").values.empty());
}

}  // namespace
}  // namespace lehr::metric
