// Pipeline runs that train a part of a model equal one device, and their checkpoints do not depend on stages.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/peft/inject.h"
#include "lehr/pretrained/model_folder.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::every_nth;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using testing::joined;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

// Four layers, for up to four stages.
Overrides shape_of(const std::string& name) {
  return joined(family(name), {{"model.args.num_hidden_layers", "4"}, {"training.global_batch_size", "8"}});
}

// A base model for adapters.
struct Base {
  std::string name;
  Overrides shape;
};
const Base kUntiedBase{"qwen3", joined(shape_of("qwen3"), {{"model.args.tie_word_embeddings", "false"}})};
const Base kTiedBase{"qwen3", joined(shape_of("qwen3"), {{"model.args.tie_word_embeddings", "true"}})};
const Base kExpertsBase{"qwen3_moe", shape_of("qwen3_moe")};

// The folder of a base, trained once for all tests.
std::string folder_of(const Base& base) {
  struct Trained {
    Folder folder;
    std::string path;
  };
  static std::map<const Base*, std::unique_ptr<Trained>> all;
  auto& trained = all[&base];
  if (!trained) {
    trained = std::make_unique<Trained>();
    const auto config =
        tiny_run(trained->folder.path(), joined(base.shape, {{"training.steps", "2"}, {"checkpoint.interval", "2"}}));
    testing::train(config);
    trained->path = testing::checkpoint(config, 2).string();
  }
  return trained->path;
}

struct Part {
  std::string name;
  const Base& base;
  Overrides peft;
  std::string weights = "adapter_model";  // stem of the saved weights
};

const Overrides kLora{{"peft.method", "lora"}, {"peft.r", "3"}, {"optimizer.lr", "0.01"}};
const Part kAdapters{"adapters", kUntiedBase, kLora};
const Part kDropout{"adapters with dropout", kUntiedBase, joined(kLora, {{"peft.dropout", "0.25"}})};
const Part kOfExperts{"adapters of experts", kExpertsBase, kLora};
const Part kTable{
    "adapters, and a tied table",
    kTiedBase,
    joined(kLora, {{"peft.full_tune_pattern", R"('model\.(embed_tokens|norm)')"}})};
const Part kFrozenTable{"adapters, and a tied table that is frozen", kTiedBase, kLora};
// Some stages have nothing to train.
const Part kLastLayer{
    "adapters of the last layer", kUntiedBase, joined(kLora, {{"peft.target_pattern", R"('.*layers\.3\..*_proj')"}})};
const Part kFirstLayer{
    "the first layer",
    kUntiedBase,
    {{"peft.method", "full_tune"}, {"peft.full_tune_pattern", R"('model\.layers\.0')"}},
    "model"};
const Part kNorm{
    "the last norm",
    kUntiedBase,
    {{"peft.method", "full_tune"}, {"peft.full_tune_pattern", R"('model\.norm')"}},
    "model"};

TrainConfig run_of(const Folder& folder, const Part& part, const Overrides& more = {}) {
  const Overrides start{{"checkpoint.initial_load_path", "\"" + folder_of(part.base) + "\""}};
  return tiny_run(folder.path(), joined(joined(joined(part.base.shape, start), part.peft), more));
}

const Outcome& alone(const Part& part) {
  static std::map<const Part*, Outcome> outcomes;
  if (!outcomes.contains(&part)) {
    const Folder folder;
    const auto config = run_of(folder, part);
    testing::train(config);
    outcomes[&part] = outcome_of(config, part.weights);
  }
  return outcomes.at(&part);
}

struct Case {
  const Part& part;
  Mesh mesh;
  std::string schedule = "1F1B";
};

// Every second case unless LEHR_ALL_MESHES=1: each part has one.
TEST(PartialTrainingOnStages, EqualsOneDevice) {
  const std::vector<Case> cases{
      {kAdapters, {.pp = 2}},
      {kAdapters, {.dp_shard = 2, .pp = 2}, "ZBVZeroBubble"},
      {kDropout, {.pp = 4}, "ZBH1"},
      {kAdapters, {.cp = 2, .pp = 2}, "Interleaved1F1B"},
      {kOfExperts, {.pp = 2}, "ZBVZeroBubble"},
      {kOfExperts, {.dp_shard = 2, .pp = 2}},
      {kTable, {.pp = 2}},
      {kTable, {.dp_shard = 2, .pp = 2}, "ZBVZeroBubble"},
      {kFrozenTable, {.pp = 4}},
      {kLastLayer, {.pp = 4}, "ZBH2"},
      {kLastLayer, {.dp_shard = 2, .pp = 2}},
      {kFirstLayer, {.pp = 4}},
      {kFirstLayer, {.tp = 2, .pp = 2}, "InterleavedZeroBubble"},
      {kNorm, {.dp_shard = 2, .pp = 2}},
      {kNorm, {.pp = 4}, "ZBH1"}};
  for (const Case& one : every_nth(2, cases)) {
    SCOPED_TRACE(one.part.name + " " + one.schedule + " " + one.mesh.name());
    const Folder folder;
    const auto config =
        run_of(folder, one.part, {{"parallelism.pipeline_parallel_schedule", "\"" + one.schedule + "\""}});
    train_on(one.mesh, config);
    expect_equal(alone(one.part), outcome_of(config, one.part.weights));
  }
}

// Two of four parts unless LEHR_ALL_MESHES=1.
TEST(PartialTrainingOnStages, ContinuesOnAnyOtherMesh) {
  const std::vector<const Part*> parts{&kAdapters, &kTable, &kFirstLayer, &kLastLayer};
  for (const Part* part : every_nth(2, parts, 1)) {
    SCOPED_TRACE(part->name);
    const Folder folder;
    const auto config = run_of(folder, *part);
    train_on({.pp = 4}, config, 1);
    train_on({.dp_shard = 2}, config, 1);
    train_on({.dp_shard = 2, .pp = 2}, config, 1);
    EXPECT_FALSE(std::filesystem::exists(testing::checkpoint(config, testing::kSteps)))
        << "nothing is left to the last mesh";
    train_on({}, config);
    expect_equal(alone(*part), outcome_of(config, part->weights));
  }
}

// The folder equals that of one device byte for byte, except for the run's own numbers; and a new run can start from
// it.
TEST(PartialTrainingOnStages, SavesAFolderThatOneDeviceReads) {
  for (const Part* part : {&kTable, &kOfExperts}) {
    SCOPED_TRACE(part->name);
    const Folder one;
    const auto on_one = run_of(one, *part);
    testing::train(on_one);
    const Folder folder;
    const auto config = run_of(folder, *part);
    train_on({.pp = 4}, config);
    const auto saved = testing::checkpoint(config, testing::kSteps);
    for (const char* file : {"adapter_config.json", "model_config.json"}) {
      EXPECT_EQ(read_file(saved / file), read_file(testing::checkpoint(on_one, testing::kSteps) / file)) << file;
    }
    const auto model = pretrained::ModelFolder::open(saved, testing::families()).load(at::kCPU, at::kDouble);
    EXPECT_EQ(
        peft::adapted_layers(*model).size(),
        peft::adapted_layers(
            *pretrained::ModelFolder::open(testing::checkpoint(on_one, testing::kSteps), testing::families())
                 .load(at::kCPU, at::kDouble))
            .size());

    const Overrides more{{"peft.init_from", "\"" + saved.string() + "\""}};
    const Folder next_one;
    const auto goes_on = run_of(next_one, *part, more);
    testing::train(goes_on);
    const Folder next;
    const auto on_stages = run_of(next, *part, more);
    train_on({.pp = 2}, on_stages);
    expect_equal(outcome_of(goes_on, part->weights), outcome_of(on_stages, part->weights));
  }
}

// A pattern that matches on one stage only is valid; a pattern that matches on no stage is an error.
TEST(PartialTrainingOnStages, MatchesPatternsAgainstTheWholeModel) {
  const auto refuses = [](const Overrides& more, const std::string& text) {
    const Folder folder;
    const auto config = run_of(folder, kAdapters, more);
    EXPECT_THAT([&] { train_on({.pp = 2}, config); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr(text)));
  };
  refuses({{"peft.target_pattern", "'.*qproj'"}}, "the nearest are: model.layers.0.self_attn.");
  refuses({{"peft.target_pattern", R"('.*layers\.4\..*')"}}, "peft.target_pattern: \".*layers\\.4\\..*\" matches");
  refuses({{"peft.full_tune_pattern", R"('.*layers\.3\..*')"}}, "is selected by lora and by full_tune");
  const Folder folder;
  const auto first = run_of(folder, kAdapters, {{"training.steps", "2"}});
  train_on({.pp = 2}, first);
  const auto rescaled = run_of(folder, kAdapters, {{"peft.alpha", "3"}});
  EXPECT_THAT(
      [&] { train_on({.pp = 4}, rescaled); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("but 1 in this run; set peft.r, peft.alpha")));
}

}  // namespace
}  // namespace lehr::train
