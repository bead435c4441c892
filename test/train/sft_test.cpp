// Supervised fine-tuning on conversations: learning, bit-exact resumption, and early errors.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/data/chat_template.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/state/weights.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Throws;
using testing::tiny_run;
using testing::train;

/// The recipe's data and tokenizer with a tiny model.
TrainConfig chat_run(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides overrides{
      {"model.args.vocab_size", "1024"},
      {"model.args.max_position_embeddings", "128"},
      {"tokenizer.path", "\"recipe/data/chat_tokenizer\""},
      {"data.validation_fraction", "0.0"},
      {"data.validation_path", "\"recipe/data/instructions_validation.json\""},
      {"data.datasets.0.path", "\"recipe/data/instructions.json\""},
      {"data.datasets.0.kind", "\"chat\""},
      {"data.datasets.0.prompt_key", "\"instruction\""},
      {"data.datasets.0.input_key", "\"input\""},
      {"data.datasets.0.answer_key", "\"output\""},
      {"training.task", "\"sft\""},
      {"training.seq_len", "64"},
      {"validation.steps", "3"}};
  return tiny_run(folder, testing::joined(overrides, more));
}

std::map<std::string, at::Tensor> weights(const TrainConfig& config, const std::string& stem) {
  const state::WeightReader reader(std::filesystem::path(config.job.dump_folder) / "checkpoints/step-12", stem);
  std::map<std::string, at::Tensor> all;
  for (const auto& name : reader.names()) {
    all[name] = reader.tensor(name).clone();
  }
  return all;
}

TEST(SupervisedFineTuning, LearnsHeldOutAnswersAndSavesTheTemplate) {
  const Folder folder;
  const auto config = chat_run(
      folder.path(),
      {{"training.steps", "40"},
       {"optimizer.lr", "0.02"},
       {"validation.freq", "5"},
       {"checkpoint.interval", "40"},
       {"sample.prompt", "\"What is the opposite of hot?\""},
       {"sample.max_new_tokens", "8"}});
  train(config);
  const std::filesystem::path out = config.job.dump_folder;
  const auto losses = metric::read_metric(out / "metrics.jsonl", "validation_loss").values;
  ASSERT_EQ(losses.size(), 8U);
  EXPECT_LT(losses.back(), losses.front() - 0.5);  // the first loss is below ln 1024 = 6.9
  EXPECT_TRUE(data::has_chat_template((out / "checkpoints/step-40").string()));
  EXPECT_THAT(read_file(out / "sample.txt"), ::testing::StartsWith("What is the opposite of hot?\n\n"));
}

TEST(SupervisedFineTuning, AFolderAsTemplateFileIsRefusedByItsKey) {
  const Folder folder;
  const auto config = chat_run(folder.path(), {{"tokenizer.chat_template", "\"recipe/data/chat_tokenizer\""}});
  EXPECT_THAT(
      [&] { train(config); },
      Throws<Error>(::testing::Property(
          &Error::what,
          HasSubstr("tokenizer.chat_template: recipe/data/chat_tokenizer is a folder, expected a file"))));
}

TEST(SupervisedFineTuning, ResumesBitForBit) {
  const Folder whole, stopped;
  const auto uninterrupted = chat_run(whole.path());
  const auto config = chat_run(stopped.path());
  train(uninterrupted);
  train(config, /*stop_after=*/5);
  train(config);
  for (const char* stem : {"model", "optimizer"}) {
    const auto a = weights(uninterrupted, stem), b = weights(config, stem);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) {
      EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
    }
  }
}

TEST(SupervisedFineTuning, AnotherTemplateMeansOtherData) {
  const Folder folder;
  train(chat_run(folder.path()), /*stop_after=*/5);
  const auto own = folder.path() / "own.jinja";
  write_file_atomically(
      own,
      "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>{% endif %}");
  EXPECT_THAT(
      [&] {
        train(chat_run(folder.path(), {{"tokenizer.chat_template", "\"" + own.string() + "\""}}));
      },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("read different data than [data] describes"))));
}

TEST(SupervisedFineTuning, SavesTheConfiguredTemplateWithTheModel) {
  const Folder folder;
  const auto own = folder.path() / "own.jinja";
  write_file_atomically(own, "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}");
  const auto config = chat_run(
      folder.path(),
      {{"tokenizer.path", "\"byte\""},
       {"model.args.vocab_size", "257"},
       {"training.seq_len", "128"},
       {"training.steps", "2"},
       {"lr_scheduler.warmup_steps", "0"},
       {"tokenizer.chat_template", "\"" + own.string() + "\""}});
  train(config);
  EXPECT_EQ(
      read_file(std::filesystem::path(config.job.dump_folder) / "checkpoints/step-2/chat_template.jinja"),
      read_file(own));
}

TEST(SupervisedFineTuning, TheSavedModelAlsoStopsAtTheEndOfATurn) {
  const Folder folder;
  const auto tokenizer = folder.path() / "tokenizer";
  std::filesystem::copy("recipe/data/chat_tokenizer", tokenizer);
  write_file_atomically(tokenizer / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto config = chat_run(
      folder.path(),
      {{"tokenizer.path", "\"" + tokenizer.string() + "\""},
       {"training.steps", "2"},
       {"lr_scheduler.warmup_steps", "0"}});
  train(config);
  const Node saved =
      parse_json_file(std::filesystem::path(config.job.dump_folder) / "checkpoints/step-2/generation_config.json");
  EXPECT_EQ(to_json(saved.at("eos_token_id")), "[1021,1023]");
}

TEST(SupervisedFineTuning, RefusesIncompatibleSettings) {
  const std::vector<std::pair<Overrides, std::string>> cases{
      {{{"training.task", "\"causal_lm\""}}, "conversations need training.task = \"sft\""},
      {{{"data.datasets.0.kind", "\"text\""},
        {"data.datasets.0.prompt_key", "\"\""},
        {"data.datasets.0.input_key", "\"\""},
        {"data.datasets.0.answer_key", "\"\""}},
       "sft needs conversations"},
      {{{"data.datasets.0.answer_key", "\"\""}}, "data.datasets.0.answer_key"},
      {{{"tokenizer.path", "\"byte\""}}, "the byte tokenizer has no chat template"},
      {{{"training.seq_len", "8"}}, "no conversation is left to train on"},
      {{{"sample.prompt", "\"Hello\""}, {"sample.max_new_tokens", "120"}}, "sample.max_new_tokens"}};
  for (const auto& wrong : cases) {
    const Folder folder;
    EXPECT_THAT(
        [&] { train(chat_run(folder.path(), wrong.first)); },
        Throws<Error>(::testing::Property(&Error::what, HasSubstr(wrong.second))));
  }
}

}  // namespace
}  // namespace lehr::train
