// Runs that start from parts of another run's checkpoint, on one device, on meshes and in pipeline stages.
#include <gmock/gmock.h>

#include "lehr/config/json.h"
#include "lehr/state/safetensors_writer.h"
#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

namespace fs = std::filesystem;
using any_error::error_of;
using ::testing::AllOf;
using testing::checkpoint;
using testing::curve;
using ::testing::ElementsAre;
using testing::expect_same_bits;
using testing::family;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;
using testing::on_mesh;
using testing::tensors;
using testing::tiny_run;
using testing::train;

std::string quoted(const fs::path& path) {
  return "\"" + path.string() + "\"";
}

int64_t of_state(const fs::path& folder, const std::string& key) {
  return parse_json_file(folder / "trainer.json").find(key)->as_int();
}

// A run of 12 steps with checkpoints at steps 4, 8 and 12, and runs that start from that of step 4.
class FromAnotherRun : public ::testing::Test {
 protected:
  void SetUp() override {
    source_ = tiny_run(source_folder_.path());
    train(source_);
  }

  TrainConfig config(const std::string& exclude, Overrides overrides = {}) const {
    overrides.emplace_back("checkpoint.initial_load_path", quoted(checkpoint(source_, 4)));
    overrides.emplace_back("checkpoint.initial_load_model_only", "false");
    overrides.emplace_back("checkpoint.exclude_from_loading", exclude);
    return tiny_run(folder_.path(), overrides);
  }

  Folder source_folder_, folder_;
  TrainConfig source_;
};

TEST_F(FromAnotherRun, WithAllPartsTheRunContinues) {
  const auto taken = config("[]");
  train(taken);
  for (const char* stem : {"model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(taken, 12), stem), tensors(checkpoint(source_, 12), stem));
  }
  EXPECT_EQ(read_file(checkpoint(taken, 12) / "trainer.json"), read_file(checkpoint(source_, 12) / "trainer.json"));
  const auto rates = curve(source_, "lr");
  EXPECT_EQ(curve(taken, "lr"), std::vector<double>(rates.begin() + 4, rates.end()));
}

TEST_F(FromAnotherRun, WithoutTheOptimizerMomentsStartAtZero) {
  const auto taken = config("[\"optimizer\"]", {{"training.steps", "5"}, {"lr_scheduler.total_steps", "12"}});
  train(taken);
  EXPECT_EQ(of_state(checkpoint(taken, 5), "step"), 5);
  for (const auto& [name, tensor] : tensors(checkpoint(taken, 5), "optimizer")) {
    if (tensor.dim() == 0) {
      EXPECT_EQ(tensor.item<double>(), 1) << name;
    }
  }
  // The same sequences and the same weights: everything before the update is equal.
  EXPECT_EQ(curve(taken, "loss").front(), curve(source_, "loss")[4]);
  EXPECT_EQ(curve(taken, "lr").front(), curve(source_, "lr")[4]);
}

TEST_F(FromAnotherRun, WithoutTheScheduleItRestartsOverTheRemainingSteps) {
  const auto taken = config("[\"lr_scheduler\"]");
  train(taken);
  const Folder other;
  const auto short_run = tiny_run(other.path(), {{"training.steps", "8"}});
  train(short_run);
  EXPECT_EQ(curve(taken, "lr"), curve(short_run, "lr"));
  EXPECT_EQ(curve(taken, "loss").front(), curve(source_, "loss")[4]);
}

TEST_F(FromAnotherRun, WithoutTheDataItRestartsAndMayBeOtherData) {
  const auto taken = config(
      "[\"dataloader\"]",
      {{"training.seq_len", "16"}, {"debug.seed", "7"}, {"training.global_batch_size", "2"}, {"training.steps", "6"}});
  train(taken);
  EXPECT_EQ(of_state(checkpoint(taken, 6), "step"), 6);
  EXPECT_EQ(of_state(checkpoint(taken, 6), "sequences_read"), 2 * 2);
}

TEST_F(FromAnotherRun, WithoutTheStepCountItRestartsAtZeroAndTheRestContinues) {
  const auto taken = config("[\"train_state\"]", {{"training.steps", "8"}});
  train(taken);
  const auto rates = curve(source_, "lr"), losses = curve(source_, "loss");
  EXPECT_EQ(curve(taken, "lr"), std::vector<double>(rates.begin() + 4, rates.end()));
  EXPECT_EQ(curve(taken, "loss"), std::vector<double>(losses.begin() + 4, losses.end()));
  expect_same_bits(tensors(checkpoint(taken, 8), "model"), tensors(checkpoint(source_, 12), "model"));
  EXPECT_EQ(of_state(checkpoint(taken, 8), "sequences_read"), 12 * 4);
}

TEST_F(FromAnotherRun, SuchARunResumesExactly) {
  const Overrides overrides{{"training.steps", "8"}, {"checkpoint.interval", "3"}};
  const std::string exclude = R"(["train_state", "lr_scheduler", "model\\.norm\\.weight"])";
  const auto whole = config(exclude, overrides);
  train(whole);
  const auto expected = tensors(checkpoint(whole, 8), "model");
  fs::remove_all(whole.job.dump_folder);
  train(config(exclude, overrides), 3);
  // The folder from which it started is no longer needed.
  fs::remove_all(source_.job.dump_folder);
  train(config(exclude, overrides));
  expect_same_bits(tensors(checkpoint(whole, 8), "model"), expected);
}

TEST_F(FromAnotherRun, MismatchesAreRefusedWithThePartToExclude) {
  const auto refused = [&](const Overrides& overrides) { return error_of([&] { train(config("[]", overrides)); }); };
  EXPECT_THAT(
      refused({{"optimizer.name", "\"adam\""}}),
      AllOf(HasSubstr("optimizer.name: "), HasSubstr("add \"optimizer\" to checkpoint.exclude_from_loading")));
  EXPECT_THAT(
      refused({{"debug.seed", "7"}}),
      AllOf(HasSubstr("debug.seed: "), HasSubstr("add \"dataloader\" to checkpoint.exclude_from_loading")));
  EXPECT_THAT(refused({{"data.seed", "7"}}), HasSubstr("read different data than [data] describes now"));
  EXPECT_THAT(
      refused({{"training.steps", "3"}, {"lr_scheduler.warmup_steps", "1"}}),
      AllOf(HasSubstr("4 steps are complete"), HasSubstr("add \"train_state\"")));
  const auto weights = checkpoint(source_, 4);
  fs::remove(weights / "trainer.json");
  EXPECT_THAT(refused({}), HasSubstr("is not a checkpoint of a run (trainer.json, optimizer.safetensors)"));
}

TEST_F(FromAnotherRun, NamesOfPartsAreCheckedWithTheConfig) {
  EXPECT_THAT(
      error_of([&] { config("[\"optimiser\"]"); }),
      AllOf(
          HasSubstr("\"optimiser\" is not a part of a checkpoint, did you mean \"optimizer\"?"),
          HasSubstr("expected optimizer, lr_scheduler, dataloader, train_state, or a regular expression")));
  EXPECT_THAT(error_of([&] { config("[\"model.(\"]"); }), HasSubstr("is not a regular expression"));
  EXPECT_THAT(
      error_of([&] { train(config(R"(["model\\.layer\\..*"])")); }),
      AllOf(
          HasSubstr("checkpoint.exclude_from_loading: \"model\\.layer\\..*\" matches the whole name of no weight"),
          HasSubstr("the weights are model.embed_tokens.weight")));
  const Folder folder;
  EXPECT_THAT(
      error_of([&] {
        tiny_run(
            folder.path(),
            {{"checkpoint.initial_load_path", "\"x\""}, {"checkpoint.exclude_from_loading", "[\"optimizer\"]"}});
      }),
      HasSubstr("\"optimizer\" is not loaded anyway, unless checkpoint.initial_load_model_only is false"));
  EXPECT_THAT(
      error_of([&] {
        tiny_run(folder.path(), {{"checkpoint.initial_load_strict", "false"}});
      }),
      HasSubstr("has no effect without checkpoint.initial_load_path"));
}

// Copies the weights of a folder, changed by `change`, to a new folder.
template <class Change>
void copy_changed(const fs::path& from, const fs::path& to, const Change& change) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().filename().string().find("model") != 0) {
      fs::copy_file(entry.path(), to / entry.path().filename());
    }
  }
  auto all = tensors(from, "model");
  change(all);
  state::save_safetensors(to / "model.safetensors", {all.begin(), all.end()});
}

std::string name_of_head(const std::map<std::string, at::Tensor>& parameters) {
  for (const auto& [name, value] : parameters) {
    if (name.starts_with("lm_head.")) {
      return name;
    }
  }
  return "none";
}

// Parameters, or boxes of them, before the first step.
std::map<std::string, at::Tensor> started(Trainer& trainer) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    values[name] = parameter->value().detach().clone();
  }
  return values;
}

std::map<std::string, at::Tensor> started(const TrainConfig& config) {
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log, .stop_requested = {}});
  return started(trainer);
}

TEST(PartialLoad, MissingAndUnexpectedTensorsAreErrorsUnlessStrictIsFalse) {
  const Folder first, changed, second, fresh;
  const std::pair<std::string, std::string> untied{"model.args.tie_word_embeddings", "false"};
  const auto source = tiny_run(first.path(), {untied, {"training.steps", "4"}});
  train(source);
  copy_changed(checkpoint(source, 4), changed.path() / "weights", [](auto& all) {
    all.erase("model.layers.1.self_attn.k_proj.weight");
    all["model.layers.9.mlp.up_proj.weight"] = at::ones({2, 2});
  });
  Overrides overrides{untied, {"checkpoint.initial_load_path", quoted(changed.path() / "weights")}};
  EXPECT_THAT(
      error_of([&] { train(tiny_run(second.path(), overrides)); }),
      HasSubstr("the checkpoint lacks model.layers.1.self_attn.k_proj.weight"));
  overrides.emplace_back("checkpoint.initial_load_strict", "false");
  auto expected =
      started(tiny_run(second.path(), {untied, {"checkpoint.initial_load_path", quoted(checkpoint(source, 4))}}));
  const auto unlearned = started(tiny_run(fresh.path(), {untied}));
  const auto name = "model.layers.1.self_attn.k_proj.weight";
  EXPECT_FALSE(at::equal(expected.at(name), unlearned.at(name)));
  expected[name] = unlearned.at(name);
  expect_same_bits(started(tiny_run(second.path(), overrides)), expected);
  // A different shape is still an error, unless the weight is excluded.
  copy_changed(checkpoint(source, 4), changed.path() / "larger", [](auto& all) {
    all["lm_head.weight"] = at::ones({300, 16});
  });
  overrides = {
      untied,
      {"checkpoint.initial_load_path", quoted(changed.path() / "larger")},
      {"checkpoint.initial_load_strict", "false"}};
  EXPECT_THAT(
      error_of([&] { train(tiny_run(second.path(), overrides)); }),
      HasSubstr("shapes differ from the model's: lm_head.weight (expected 257x16, found 300x16)"));
  overrides.emplace_back("checkpoint.exclude_from_loading", R"(["lm_head\\.weight"])");
  expected[name] = tensors(checkpoint(source, 4), "model").at(name);
  expected[name_of_head(expected)] = unlearned.at(name_of_head(expected));
  expect_same_bits(started(tiny_run(second.path(), overrides)), expected);
}

TEST(PartialLoad, AFusedTensorOfExpertsIsReadWholeOrNotAtAll) {
  const Folder first, second;
  auto overrides = family("qwen3_moe");
  overrides.emplace_back("training.steps", "1");
  overrides.emplace_back("lr_scheduler.warmup_steps", "0");
  const auto source = tiny_run(first.path(), overrides);
  train(source);
  overrides.emplace_back("checkpoint.initial_load_path", quoted(checkpoint(source, 1)));
  overrides.emplace_back("checkpoint.exclude_from_loading", R"(["model\\.layers\\.0\\.mlp\\.experts\\.3\\..*"])");
  EXPECT_THAT(
      error_of([&] { train(tiny_run(second.path(), overrides)); }),
      AllOf(HasSubstr("consists of 8 tensors, of which only some can be read"), HasSubstr("experts.3.")));
}

// Every mesh starts with the same bits, and trains like one device.
TEST(PartialLoad, MeshesAndStagesEqualOneDevice) {
  const Folder first, alone;
  auto overrides = family("qwen3_moe");
  overrides.emplace_back("model.args.tie_word_embeddings", "false");
  const auto source = tiny_run(first.path(), overrides);
  train(source, 4);
  overrides.emplace_back("model.args.vocab_size", "264");  // other shapes, which are excluded
  overrides.emplace_back("checkpoint.initial_load_path", quoted(checkpoint(source, 4)));
  overrides.emplace_back("checkpoint.initial_load_model_only", "false");
  overrides.emplace_back(
      "checkpoint.exclude_from_loading",
      R"(["train_state", "lr_scheduler", "model\\.embed_tokens\\.weight", "lm_head\\.weight",
         "model\\.layers\\.1\\.mlp\\.experts\\..*"])");
  const auto one = tiny_run(alone.path(), overrides);
  const auto expected = started(one);
  EXPECT_EQ(expected.at(name_of_head(expected)).size(0), 264);
  train(one);
  const auto outcome = testing::outcome_of(one);
  for (const Mesh& mesh :
       {Mesh{.dp_shard = 2, .tp = 2, .ep = 2}, Mesh{.dp_shard = 2, .pp = 2}, Mesh{.dp_replicate = 2, .cp = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), overrides);
    on_mesh(mesh, config, 0, [&](Trainer& trainer) {
      for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
        EXPECT_TRUE(at::equal(parameter->value().detach(), narrow_to(expected.at(name), parameter->box()))) << name;
      }
      trainer.run();
    });
    testing::expect_equal(outcome, testing::outcome_of(config));
  }
}

}  // namespace
}  // namespace lehr::train
