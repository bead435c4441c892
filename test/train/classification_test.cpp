// Runs that train a classifier of texts.
#include <gtest/gtest.h>

#include <numeric>

#include "lehr/metric/metrics_log.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::checkpoint;
using testing::Folder;
using testing::tiny_run;
using testing::train;

// Of 60 sentences, 39 have the label 0, so always predicting one label is right for 65 %. After eight epochs the
// classifier has memorized nearly all: 93 % were observed.
TEST(Trainer, ClassifiesText) {
  const Folder folder;
  const std::string sample = std::string(LEHR_SOURCE_DIR) + "/test/data/data/sst2_sample.txt";
  const auto config = tiny_run(
      folder.path(),
      {{"training.task", "classification"},
       {"data.datasets", "[{path = \"" + sample + "\", kind = \"classification\"}]"},
       {"data.validation_fraction", "0.0"},
       {"data.validation_path", "\"" + sample + "\""},
       {"training.seq_len", "64"},
       {"training.steps", "120"},
       {"optimizer.lr", "0.01"},
       {"checkpoint.interval", "60"},
       {"validation.freq", "30"},
       {"training.classifier_dropout", "0.1"}});
  EXPECT_EQ(train(config).step, 120);
  const auto out = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
  const auto accuracy = metric::read_metric(out, "accuracy").values;
  const auto validation = metric::read_metric(out, "validation_accuracy").values;
  ASSERT_EQ(accuracy.size(), 120U);
  ASSERT_EQ(validation.size(), 4U);
  const auto mean = [&](auto first, auto last) { return std::accumulate(first, last, 0.0) / 30; };
  EXPECT_GT(mean(accuracy.end() - 30, accuracy.end()), mean(accuracy.begin(), accuracy.begin() + 30) + 0.15);
  EXPECT_LT(validation.front(), 0.8);
  EXPECT_GT(validation.back(), 0.85);
}

TEST(Trainer, StartsAClassifierFromALanguageModel) {
  const Folder folder;
  const auto language = tiny_run(folder.path(), {{"training.steps", "4"}});
  train(language);
  const Folder other;
  const auto config = tiny_run(
      other.path(),
      {{"training.task", "\"classification\""},
       {"training.steps", "4"},
       {"data.datasets.0.path", "\"recipe/data/who_speaks.txt\""},
       {"data.datasets.0.kind", "\"classification\""},
       {"data.validation_fraction", "0.0"},
       {"data.validation_path", "\"recipe/data/who_speaks_validation.txt\""},
       {"checkpoint.initial_load_path", "\"" + checkpoint(language, 4).string() + "\""}});
  EXPECT_EQ(train(config).step, 4);
}

}  // namespace
}  // namespace lehr::train
