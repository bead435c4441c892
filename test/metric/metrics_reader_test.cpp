// metrics.jsonl read while it is written: whole lines only, each once, from the beginning after a resume.
#include "lehr/metric/metrics_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "lehr/base/error.h"
#include "lehr/metric/metrics_log.h"

namespace lehr::metric {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class MetricsReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("lehr_metrics_reader_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "metrics.jsonl";
    reader_ = std::make_unique<MetricsReader>(path_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void append(const std::string& text) const { std::ofstream(path_, std::ios::binary | std::ios::app) << text; }

  // The steps of the lines that are new; -1 where the reader begins again.
  std::vector<int64_t> read() {
    std::vector<int64_t> steps;
    there_ = reader_->read([&](const MetricsLine& line) { steps.push_back(line.step); }, [&] { steps.push_back(-1); });
    return steps;
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
  std::unique_ptr<MetricsReader> reader_;
  bool there_ = false;
};

TEST_F(MetricsReaderTest, PassesEachLineOnOnce) {
  append("{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_THAT(read(), ElementsAre(1, 2));
  EXPECT_THAT(read(), IsEmpty());
  append("{\"step\":3}\n");
  EXPECT_THAT(read(), ElementsAre(3));
}

TEST_F(MetricsReaderTest, LeavesALineWithoutItsEndForLater) {
  append("{\"step\":1}\n{\"step\":2,\"lo");
  EXPECT_THAT(read(), ElementsAre(1));
  EXPECT_THAT(read(), IsEmpty());
  append("ss\":2}\n");
  EXPECT_THAT(read(), ElementsAre(2));
  append("{\"step\":3}");  // a complete object, but its line may continue
  EXPECT_THAT(read(), IsEmpty());
  append("\n");
  EXPECT_THAT(read(), ElementsAre(3));
  EXPECT_EQ(reader_->unreadable(), 0);
}

TEST_F(MetricsReaderTest, WaitsForAFileThatIsNotThereYet) {
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_FALSE(there_);
  append("");
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_TRUE(there_);
  append("{\"step\":1}\n");
  EXPECT_THAT(read(), ElementsAre(1));
}

TEST_F(MetricsReaderTest, BeginsAgainWhenARunResumes) {
  {
    MetricsLog log(path_, -1);
    for (int64_t step = 1; step <= 5; ++step) {
      log.write(step, {{"loss", 1.0}});
    }
  }
  EXPECT_THAT(read(), ElementsAre(1, 2, 3, 4, 5));
  MetricsLog log(path_, 3);
  log.write(4, {{"loss", 1.0}});
  log.write(5, {{"loss", 1.0}});  // as long as before
  EXPECT_THAT(read(), ElementsAre(-1, 1, 2, 3, 4, 5));
  log.write(6, {{"loss", 1.0}});
  EXPECT_THAT(read(), ElementsAre(6));
}

TEST_F(MetricsReaderTest, BeginsAgainAfterATruncation) {
  append("{\"step\":1}\n{\"step\":2}\n");
  EXPECT_THAT(read(), ElementsAre(1, 2));
  std::filesystem::resize_file(path_, 11);
  EXPECT_THAT(read(), ElementsAre(-1, 1));
}

TEST_F(MetricsReaderTest, SkipsAndCountsWhatIsNoMetrics) {
  append("notes\n{\"step\":1}\n[1]\n{\"step\":\"2\"}\n" + std::string(40, '\0') + "\n{\"loss\":1}\n{\"step\":2}\n");
  EXPECT_THAT(read(), ElementsAre(1, 2));
  EXPECT_EQ(reader_->unreadable(), 5);
}

TEST_F(MetricsReaderTest, SkipsALineThatIsTooLongToBeMetrics) {
  append("{\"step\":1}\n{\"step\":2,\"text\":\"" + std::string(3 << 20, 'x'));
  EXPECT_THAT(read(), ElementsAre(1));
  append("\"}\n{\"step\":3}\n");
  EXPECT_THAT(read(), ElementsAre(3));
  EXPECT_EQ(reader_->unreadable(), 1);
}

TEST_F(MetricsReaderTest, ReadsFilesOfManyChunks) {
  std::string text;
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 30'000; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":2.123456789012345,\"grad_norm\":0.5}\n";
    steps.push_back(step);
  }
  append(text);
  EXPECT_EQ(read(), steps);
}

TEST_F(MetricsReaderTest, RefusesWhatIsNoFile) {
  std::filesystem::create_directories(path_);
  EXPECT_THROW(read(), Error);
}

TEST(MetricsLineTest, HasTheNumbersOfALine) {
  const auto line = parse_metrics_line(R"({"loss":null,"step":7,"note":"a","lr":1e-3,"num_tokens":4096})");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->step, 7);
  EXPECT_EQ(line->values.size(), 3U);
  EXPECT_TRUE(std::isnan(line->find("loss").value_or(0)));
  EXPECT_EQ(line->find("lr"), 1e-3);
  EXPECT_EQ(line->find("num_tokens"), 4096);
  EXPECT_EQ(line->find("note"), std::nullopt);
  EXPECT_EQ(line->find("step"), std::nullopt);
}

}  // namespace
}  // namespace lehr::metric
