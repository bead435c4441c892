// Training of adapters on meshes that shard the adapted projections or experts equals one device.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
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

struct Kind {
  std::string family;
  Overrides overrides = {};
  Overrides shape = {};  // of the model, so also of its base
};

Overrides shape_of(const Kind& kind) {
  return joined(joined(family(kind.family), {{"training.global_batch_size", "8"}}), kind.shape);
}

// The folder of a base model, trained once for all tests.
std::string base_of(const Kind& kind) {
  static std::map<std::pair<std::string, Overrides>, std::pair<std::unique_ptr<Folder>, std::string>> bases;
  auto& [folder, path] = bases[{kind.family, kind.shape}];
  if (!folder) {
    folder = std::make_unique<Folder>();
    const auto config =
        tiny_run(folder->path(), joined(shape_of(kind), {{"training.steps", "2"}, {"checkpoint.interval", "2"}}));
    testing::train(config);
    path = testing::checkpoint(config, 2).string();
  }
  return path;
}

TrainConfig run_of(const Folder& folder, const Kind& kind) {
  const Overrides lora{
      {"checkpoint.initial_load_path", "\"" + base_of(kind) + "\""},
      {"peft.method", "lora"},
      {"peft.r", "3"},
      {"optimizer.lr", "0.01"}};
  return tiny_run(folder.path(), joined(joined(shape_of(kind), lora), kind.overrides));
}

Outcome alone(const Kind& kind) {
  const Folder folder;
  const auto config = run_of(folder, kind);
  testing::train(config);
  const Outcome outcome = outcome_of(config, "adapter_model");
  for (const auto& [name, tensor] : outcome.tensors) {
    if (name.find("lora_B") != std::string::npos) {  // starts at zero
      EXPECT_GT(tensor.abs().max().item<double>(), 1e-4) << name << ": was not trained";
    }
  }
  return outcome;
}

// On every second mesh, from the first, unless LEHR_ALL_MESHES=1.
void expect_law(const Kind& kind, const std::vector<Mesh>& meshes) {
  const Outcome wanted = alone(kind);
  for (const Mesh& mesh : every_nth(2, meshes)) {
    SCOPED_TRACE(kind.family + " " + mesh.name());
    const Folder folder;
    const auto config = run_of(folder, kind);
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config, "adapter_model"));
  }
}

TEST(AdaptersOnMeshes, EqualOneDeviceWhereTensorParallelismShardsTheirProjections) {
  expect_law(
      {"qwen3"},
      {{.tp = 2},
       {.tp = 4},
       {.dp_replicate = 2, .tp = 2},
       {.dp_shard = 2, .tp = 2},
       {.tp = 2, .pp = 2},
       {.cp = 2, .tp = 2}});
  expect_law({"llama3"}, {{.dp_shard = 2, .tp = 2}});
}

TEST(AdaptersOnMeshes, EqualOneDeviceWithFewerKeyValueHeadsThanRanks) {
  expect_law({"qwen3", {}, {{"model.args.num_key_value_heads", "2"}}}, {{.tp = 4}});
  expect_law({"olmo2"}, {{.tp = 2}});  // norms over the full width
}

TEST(AdaptersOnMeshes, EqualOneDeviceWhereTheirExpertsAreSharded) {
  expect_law(
      {"qwen3_moe"},
      {{.dp_shard = 4, .ep = 2},
       {.dp_shard = 2, .ep = 2},
       {.dp_shard = 2, .tp = 2, .ep = 4},
       {.tp = 2},
       {.dp_shard = 2, .ep = 2, .pp = 2}});
}

// Mamba-2 is among them: the rows of its projection are in another order on a rank than in the folder.
TEST(AdaptersOnMeshes, EqualOneDeviceInLayersWithOneMixerEach) {
  expect_law({"nemotron_h", {{"peft.dropout", "0.25"}}}, {{.tp = 2}, {.dp_shard = 2, .tp = 2}, {.cp = 2, .pp = 2}});
}

// Without gates, experts have two projections.
TEST(AdaptersOnMeshes, EqualOneDeviceInExpertsWithoutGates) {
  expect_law(
      {testing::kNemotronHWithExperts}, {{.dp_shard = 2, .tp = 2, .ep = 4}, {.cp = 2}, {.dp_shard = 2, .ep = 2}});
}

// The rows of in_proj in the folder of a run that tunes it whole, under tensor parallelism.
TEST(AdaptersOnMeshes, EqualOneDeviceWhereProjectionsWithOtherRowsAreTunedWhole) {
  expect_law(
      {"nemotron_h",
       {{"peft.target_pattern", R"('.*\.q_proj')"}, {"peft.full_tune_pattern", R"('.*\.mamba\.in_proj')"}}},
      {{.tp = 2}, {.dp_shard = 2, .tp = 2}, {.tp = 4}});
}

// Their experts take no adapters.
TEST(AdaptersOnMeshes, EqualOneDeviceBesideExpertsThatAreStoredTransposed) {
  expect_law(
      {"gpt_oss", {{"peft.target_pattern", R"('.*self_attn\..*_proj')"}}},
      {{.tp = 2}, {.dp_shard = 2, .ep = 2}, {.dp_shard = 2, .pp = 2}});
}

// Masks are those of one device, also in a rank's share of the features.
TEST(AdaptersOnMeshes, DropTheElementsOfOneDevice) {
  expect_law({"qwen3", {{"peft.dropout", "0.25"}}}, {{.tp = 2}, {.dp_shard = 2, .tp = 2}});
}

// In latent attention, the inputs of some projections are all features of all tokens on every rank.
TEST(AdaptersOnMeshes, DropTheElementsOfOneDeviceBeforeLatents) {
  expect_law(
      {"deepseek_v3", {{"peft.dropout", "0.25"}, {"peft.target_pattern", R"('.*self_attn\..*_proj.*')"}}},
      {{.tp = 2}, {.cp = 2, .tp = 2}, {.tp = 2, .pp = 2}});
}

TEST(AdaptersOnMeshes, AreTrainedBesideWholeModulesAndByMuon) {
  expect_law({"qwen3", {{"peft.full_tune_pattern", R"('model\.norm|lm_head')"}}}, {{.dp_shard = 2, .tp = 2}});
  expect_law({"qwen3", {{"optimizer.name", "muon"}}}, {{.dp_shard = 2, .tp = 2}});
}

TEST(AdaptersOnMeshes, ContinueOnAnyOtherMesh) {
  const std::vector<std::vector<Mesh>> ways{
      {{.tp = 2}, {.dp_shard = 2, .ep = 2}, {}}, {{}, {.dp_shard = 2, .tp = 2, .ep = 4}, {.tp = 4}}};
  const Kind kind{"qwen3_moe"};
  const Outcome wanted = alone(kind);
  EXPECT_TRUE(std::any_of(wanted.tensors.begin(), wanted.tensors.end(), [](const auto& entry) {
    return entry.first.find("experts") != std::string::npos && entry.first.find("lora_B") != std::string::npos;
  }));
  for (const auto& meshes : ways) {
    SCOPED_TRACE(meshes.front().name());
    const Folder folder;
    const auto config = run_of(folder, kind);
    train_on(meshes[0], config, 2);
    train_on(meshes[1], config, 1);
    EXPECT_FALSE(std::filesystem::exists(testing::checkpoint(config, testing::kSteps)))
        << "nothing is left to the last mesh";
    train_on(meshes[2], config);
    expect_equal(wanted, outcome_of(config, "adapter_model"));
  }
}

// A PEFT folder that ranks saved is that of one device, and ranks start from it like one device.
TEST(AdaptersOnMeshes, SaveAndLoadTheFolderOfOneDevice) {
  const Folder one, folder;
  const auto on_one = run_of(one, {"qwen3"}), on_ranks = run_of(folder, {"qwen3"});
  testing::train(on_one);
  train_on({.dp_shard = 2, .tp = 2}, on_ranks);
  const auto saved = testing::checkpoint(on_ranks, testing::kSteps);
  for (const char* file : {"adapter_config.json", "model_config.json"}) {
    EXPECT_EQ(read_file(saved / file), read_file(testing::checkpoint(on_one, testing::kSteps) / file)) << file;
  }
  const Kind more{"qwen3", {{"peft.init_from", "\"" + saved.string() + "\""}}};
  expect_law(more, {{.tp = 2}, {.dp_shard = 2, .tp = 2}});
}

}  // namespace
}  // namespace lehr::train
