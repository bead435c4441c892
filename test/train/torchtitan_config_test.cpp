// Train configs in torchtitan's form: the keys that name data.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/config.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The train config of torchtitan's guide to a new model, with a family of Lehr's, and smaller.
constexpr const char* kConfig = R"(
[job]
dump_folder = "./outputs"
description = "Your Model 8B training"
[model]
name = "qwen3"
flavor = "debugmodel"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 32
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
)";

TrainConfig config_with(const std::string& file, const testing::Folder& folder, Overrides more = {}) {
  const auto path = folder.path() / "train.toml";
  write_file_atomically(path, file);
  more.emplace_back("job.dump_folder", "\"" + (folder.path() / "out").string() + "\"");
  return load_config<TrainConfig>({.file = path, .overrides = more});
}

TEST(TorchtitanConfig, RunsOnTheSampleOfC4) {
  const testing::Folder folder;
  const TrainConfig config =
      config_with(kConfig, folder, {{"training.steps", "2"}, {"lr_scheduler.warmup_steps", "0"}});
  ASSERT_EQ(config.data.datasets.size(), 1U);
  EXPECT_EQ(config.data.datasets.front().path, "recipe/data/c4_sample.jsonl");
  EXPECT_EQ(config.tokenizer.path, "byte");
  testing::train(config);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "out/metrics.jsonl"));
}

TEST(TrainConfig, AnEmptyTextUnsetsAKeyOfTheFile) {
  const testing::Folder folder;
  const std::string file = std::string(kConfig) + "[sample]\nprompt = \"a\"\n[checkpoint]\ninitial_load_path = \"b\"\n";
  EXPECT_TRUE(config_with(file, folder).sample.prompt);
  const TrainConfig config = config_with(file, folder, {{"sample.prompt", ""}, {"checkpoint.initial_load_path", ""}});
  EXPECT_FALSE(config.sample.prompt);
  EXPECT_FALSE(config.checkpoint.initial_load_path);
}

TEST(TorchtitanConfig, TakesAPathForAnyName) {
  const testing::Folder folder;
  const TrainConfig config = config_with(
      kConfig, folder, {{"training.dataset", "mine"}, {"training.dataset_path", "recipe/data/names.jsonl"}});
  EXPECT_EQ(config.data.datasets.front().path, "recipe/data/names.jsonl");
}

TEST(TorchtitanConfig, SaysWhatToDoWithAnUnknownName) {
  const testing::Folder folder;
  EXPECT_THAT(
      [&] {
        config_with(kConfig, folder, {{"training.dataset", "wikipedia"}});
      },
      ThrowsMessage<Error>(HasSubstr("training.dataset: expected \"c4\" or \"c4_test\", found \"wikipedia\"; set "
                                     "training.dataset_path to the file or folder")));
  EXPECT_THAT(
      [&] { config_with(std::string(kConfig) + "[[data.datasets]]\npath = \"a.txt\"\n", folder); },
      ThrowsMessage<Error>(HasSubstr("training.dataset: conflicts with [[data.datasets]]; remove one of them")));
}

}  // namespace
}  // namespace lehr::train
