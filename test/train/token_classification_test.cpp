// Runs that train a classifier of words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lehr/config/json.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/pretrained/model_folder.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::checkpoint;
using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;
using testing::train;

// Names in lines of Shakespeare.
Overrides names(const Overrides& more = {}) {
  Overrides overrides{
      {"training.task", "token_classification"},
      {"data.datasets.0.path", "\"recipe/data/names.jsonl\""},
      {"data.datasets.0.kind", "\"token_classification\""},
      {"data.validation_path", "\"recipe/data/names_validation.jsonl\""},
      {"data.validation_fraction", "0.0"},
      {"training.seq_len", "64"},
      {"training.classifier_dropout", "0.1"}};
  return testing::joined(overrides, more);
}

// Of the words of the held-out lines, 85 % are no names, so always predicting that is right for 85 %.
TEST(Trainer, ClassifiesWords) {
  const Folder folder;
  const auto config = tiny_run(
      folder.path(),
      names(
          {{"tokenizer.path", "\"recipe/data/chat_tokenizer\""},
           {"model.args.vocab_size", "1024"},
           {"training.local_batch_size", "16"},
           {"training.global_batch_size", "16"},
           {"training.steps", "80"},
           {"optimizer.lr", "0.02"},
           {"checkpoint.interval", "80"},
           {"validation.freq", "40"}}));
  EXPECT_EQ(train(config).step, 80);
  const auto out = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
  const auto validation = metric::read_metric(out, "validation_accuracy").values;
  const auto labels = metric::read_metric(out, "step_labels").values;
  ASSERT_EQ(validation.size(), 2U);
  EXPECT_GT(validation.back(), 0.9);
  const double words = std::accumulate(labels.begin(), labels.begin() + 35, 0.0);  // four passes over 140 lines
  EXPECT_EQ(words, 4 * 1055) << "each word is a label once";

  const auto saved = parse_json_file(checkpoint(config, 80) / "config.json");
  EXPECT_EQ(saved.at("architectures").at(0).as_string(), "Qwen3ForTokenClassification");
  EXPECT_EQ(saved.at("id2label").at("1").as_string(), "LABEL_1");
  const auto opened = pretrained::ModelFolder::open(checkpoint(config, 80), testing::families());
  EXPECT_EQ(opened.args->head(), descriptor::Head::token_classification);
  EXPECT_GT(testing::tensors(checkpoint(config, 80), "model").at("score.bias").abs().min().item<double>(), 0);
}

// The head's bias begins at zero, and its weight at random.
TEST(Trainer, StartsAClassifierOfWordsFromALanguageModel) {
  const Folder folder;
  const auto language = tiny_run(folder.path(), {{"training.steps", "4"}});
  train(language);
  const Folder other;
  const auto config = tiny_run(
      other.path(),
      names(
          {{"training.steps", "4"}, {"checkpoint.initial_load_path", "\"" + checkpoint(language, 4).string() + "\""}}));
  EXPECT_EQ(train(config).step, 4);
}

// As in a run_ner.py: the head is trained whole, beside adapters.
TEST(Trainer, ClassifiesWordsWithAdapters) {
  const Folder folder;
  const auto language = tiny_run(folder.path(), {{"training.steps", "4"}});
  train(language);
  const Folder other;
  const auto config = tiny_run(
      other.path(),
      names(
          {{"training.steps", "4"},
           {"training.num_labels", "3"},
           {"peft.method", "lora"},
           {"peft.r", "2"},
           {"peft.target_pattern", "'.*_proj'"},
           {"checkpoint.initial_load_path", "\"" + checkpoint(language, 4).string() + "\""}}));
  EXPECT_EQ(train(config).step, 4);
  const auto folder_of = checkpoint(config, 4);
  EXPECT_EQ(parse_json_file(folder_of / "adapter_config.json").at("task_type").as_string(), "TOKEN_CLS");
  std::filesystem::remove(folder_of / "model_config.json");  // as in an adapter of PEFT
  const auto opened = pretrained::ModelFolder::open(folder_of, testing::families(), checkpoint(language, 4));
  EXPECT_EQ(opened.args->head(), descriptor::Head::token_classification);
  EXPECT_EQ(opened.args->num_labels(), 3);
}

TEST(Trainer, NamesTheKeysThatDoNotFitLabelledWords) {
  const Folder folder;
  const auto message = [&](const Overrides& more) {
    return any_error::error_of([&] { train(tiny_run(folder.path(), names(more))); });
  };
  EXPECT_THAT(
      message({{"training.task", "classification"}}),
      HasSubstr("training.task is classification, so the data must be of kind \"classification\""));
  EXPECT_THAT(
      message({{"training.task", "causal_lm"}, {"training.classifier_dropout", "0"}}),
      HasSubstr("training.task is causal_lm, so the data must not be of kind \"token_classification\""));
  EXPECT_THAT(
      message({{"data.datasets.0.tags_key", "\"tags\""}}),
      HasSubstr("names.jsonl:1: expected an object with a list of labels under the key \"tags\""));
  EXPECT_THAT(message({{"sample.prompt", "\"O\""}}), HasSubstr("training.task is \"token_classification\""));
}

}  // namespace
}  // namespace lehr::train
