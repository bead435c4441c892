// The shape of a run's model: a flavor or a folder, changed by [model.args] and the tokenizer.
#include "lehr/train/builders.h"

#include <gmock/gmock.h>

#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

std::string error_with(Overrides overrides) {
  const testing::Folder folder;
  const TrainConfig config = testing::tiny_run(folder.path(), overrides);
  const auto list = testing::specs();
  const auto tokenizer = build_tokenizer(config);
  return error_of([&] { build_model_args(config, list.at(config.model).family, *tokenizer); });
}

// The tokenizer of bytes ends documents with 256, and has no padding. Fields of [model.args] count before other keys.
TEST(ModelArgsOfARun, RefuseKeysThatSomethingElseDecides) {
  const std::string lost = ": has no effect: the config.json of this model has ";
  EXPECT_EQ(error_with({{"model.args.eos_token_id", "256"}}), "no error");
  EXPECT_EQ(error_with({{"model.args.eos_token_id", "5"}}).find("model.args.eos_token_id" + lost + "256"), 0U);
  EXPECT_EQ(error_with({{"model.args.pad_token_id", "5"}}).find("model.args.pad_token_id" + lost + "nothing"), 0U);
  const auto experts = [](const std::string& local) {
    return error_with(
        {{"model.name", "mixtral"}, {"model.args.num_experts", "8"}, {"model.args.num_local_experts", local}});
  };
  EXPECT_EQ(experts("8"), "no error");
  EXPECT_EQ(experts("4").find("model.args.num_local_experts" + lost + "8"), 0U);
}

TEST(ModelArgsOfARun, AClassifiersPaddingIsNoOrdinaryToken) {
  const testing::Folder folder;
  const auto error_of_tokenizer = [&](const std::string& added, const std::string& task) {
    write_file_atomically(
        folder.path() / "tokenizer.json", R"({"added_tokens": [)" + added + R"(], "decoder": {"type": "ByteLevel"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
    return error_with({{"tokenizer.path", "\"" + folder.path().string() + "\""}, {"training.task", task}});
  };
  EXPECT_THAT(
      error_of_tokenizer("", "classification"),
      ::testing::HasSubstr("tokenizer.path: the tokenizer names no pad_token and no eos_token"));
  EXPECT_EQ(error_of_tokenizer("", "token_classification"), "no error") << "which pools nothing";
  EXPECT_EQ(error_of_tokenizer(R"({"id": 0, "content": "a", "special": true})", "classification"), "no error");
  write_file_atomically(folder.path() / "tokenizer_config.json", R"({"pad_token": "b"})");
  EXPECT_EQ(error_of_tokenizer("", "classification"), "no error");
}

TEST(OtherTokenizerWarning, NamesTheTokenizerOfTheRunAndTheFolderOfTheModel) {
  const testing::Folder folder;
  const TrainConfig config = testing::tiny_run(folder.path(), {});
  const auto tokenizer = build_tokenizer(config);
  const std::string model = "recipe/data/chat_tokenizer";
  EXPECT_EQ(
      other_tokenizer_warning(config, *tokenizer, model),
      "tokenizer.path: byte gives other ids than the tokenizer of the model, in " + model);
  EXPECT_EQ(other_tokenizer_warning(config, *tokenizer, folder.path()), "") << "it has none";
}

TEST(OtherSettingsWarning, NamesSettingsThatShapesDoNotShow) {
  const std::string folder = "test/data/reference/qwen3_biases";
  const auto families = testing::families();
  const descriptor::ModelFamily& family = families.at("qwen3");
  const auto args = family.from_hf_folder(folder);
  EXPECT_EQ(other_settings_warning(family, *args, folder), "");
  descriptor::ModelOverrides overrides;
  overrides.max_position_embeddings = 2 * args->max_position_ids();
  args->apply(overrides);
  EXPECT_EQ(other_settings_warning(family, *args, folder), "") << "a longer context is a choice";
  overrides.rms_norm_eps = 0.25;
  args->apply(overrides);
  EXPECT_THAT(
      other_settings_warning(family, *args, folder),
      ::testing::HasSubstr(folder + " has other settings than this run: rms_norm_eps is 1e-06 there and 0.25 here;"));
  EXPECT_EQ(other_settings_warning(family, *args, "test/data/tokenizer"), "") << "it has no config.json";
}

}  // namespace
}  // namespace lehr::train
