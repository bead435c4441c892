// Heterogeneous models in the trainer: runs, resumed runs, meshes, pipelines, checkpoints, generation.
#include "test/model/heterogeneous.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/train/generate.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using model::test::kMixed;
using model::test::kMixtures;
using model::test::LayerShape;
using testing::expect_equal;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::train_on;

/// Ten steps in float64 of a model whose config.json is in the folder.
TrainConfig run_of(
    const std::filesystem::path& folder,
    const std::string& model_type,
    const std::vector<LayerShape>& layers,
    const Overrides& more = {}) {
  std::filesystem::create_directory(folder / "shape");
  write_file_atomically(folder / "shape/config.json", model::test::config_json(model_type, layers, 257, /*tied=*/true));
  Overrides overrides{
      {"training.dtype", "float64"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "4"},
      {"training.steps", "10"},
      {"activation_checkpoint.mode", "full"},
      {"checkpoint.interval", "5"}};
  TrainConfig config = testing::tiny_run(folder, testing::joined(overrides, more));
  config.model = {};
  config.model.hf_assets_path = (folder / "shape").string();
  return config;
}

const Outcome& alone() {
  static const Outcome outcome = [] {
    const Folder folder;
    const auto config = run_of(folder.path(), "qwen3", kMixed);
    testing::train(config);
    return outcome_of(config);
  }();
  return outcome;
}

TEST(HeterogeneousRuns, Learn) {
  const auto& loss = alone().curves.at("loss");
  ASSERT_EQ(loss.size(), 10U);
  EXPECT_LT(loss.back(), loss.front() - 0.02);
}

TEST(HeterogeneousRuns, StoppedAndResumedEqualNeverStoppedBitForBit) {
  const Folder folder;
  const auto config = run_of(folder.path(), "qwen3", kMixed);
  EXPECT_TRUE(testing::train(config, 5).stopped);
  testing::train(config);
  const Outcome outcome = outcome_of(config);
  testing::expect_same_bits(outcome.tensors, alone().tensors);
  EXPECT_EQ(outcome.curves.at("loss"), alone().curves.at("loss"));
}

struct Placed {
  Mesh mesh;
  Overrides overrides = {};
};

void PrintTo(const Placed& run, std::ostream* out) {
  *out << (run.overrides.empty() ? "" : run.overrides.front().second + "_") << run.mesh.name();
}

std::string name_of(const ::testing::TestParamInfo<Placed>& run) {
  return ::testing::PrintToString(run.param);
}

// All meshes of mesh_test.cpp, and all schedules of pipeline_test.cpp, alone and combined; unless LEHR_ALL_MESHES=1,
// every sixth mesh, and each schedule on one of its meshes.
std::vector<Placed> runs_of_the_law() {
  std::vector<Placed> runs;
  for (const Mesh& mesh : testing::every_nth(6, testing::every_mesh(false), 3)) {
    runs.push_back({mesh});
  }
  const std::vector<Mesh> of_stages{
      {.pp = 2}, {.pp = 4}, {.dp_shard = 2, .pp = 2}, {.tp = 2, .pp = 2}, {.cp = 2, .pp = 2}};
  for (size_t i = 0; i < testing::kSchedules.size(); ++i) {
    for (const Mesh& mesh : testing::every_nth(of_stages.size(), of_stages, i % of_stages.size())) {
      runs.push_back({mesh, testing::of(testing::kSchedules[i])});
    }
  }
  return runs;
}

// Eight stages of one layer each. Two layers have no attention, one has no FFN, and three have windows.
TrainConfig heterogeneous_law(const std::filesystem::path& folder, const Overrides& more = {}) {
  const std::vector<LayerShape> layers{
      {8, 32}, {2, 16, 0, 0, 0, 9}, {0, 40}, {4, 0}, {0, 16}, {2, 8, 0, 0, 0, 5}, {4, 24, 0, 0, 0, 12}, {8, 32}};
  Overrides overrides{
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "8"},
      {"training.steps", std::to_string(testing::kSteps)},
      {"training.max_norm", "0.5"},
      {"data.datasets.0.split_documents", "\"blank_line\""},
      {"checkpoint.interval", std::to_string(testing::kSteps)}};
  return run_of(folder, "qwen3", layers, testing::joined(overrides, more));
}

class HeterogeneousMeshes : public ::testing::TestWithParam<Placed> {};
INSTANTIATE_TEST_SUITE_P(Runs, HeterogeneousMeshes, ::testing::ValuesIn(runs_of_the_law()), name_of);

TEST_P(HeterogeneousMeshes, EqualOneDevice) {
  static const Outcome wanted = [] {
    const Folder one;
    const auto on_one = heterogeneous_law(one.path());
    testing::train(on_one);
    return outcome_of(on_one);
  }();
  const Folder folder;
  const auto config = heterogeneous_law(folder.path(), GetParam().overrides);
  train_on(GetParam().mesh, config);
  expect_equal(wanted, outcome_of(config));
}

// The layers have 6 and 4 experts, and batches have 4 sequences, so not every mesh fits. Those that fit are all tested
// with LEHR_ALL_MESHES=1, else every sixth.
std::vector<Placed> meshes_with_experts() {
  std::vector<Placed> runs{{{.dp_shard = 2, .ep = 2}}, {{.pp = 2}}};
  size_t number = 0;
  for (const Mesh& mesh : testing::every_mesh(true)) {
    const bool fits = mesh.ep <= 2 && mesh.dp_replicate * mesh.dp_shard <= 4;
    const bool first = mesh.name() == runs.front().mesh.name();
    if (fits && !first && (testing::all_meshes() || number++ % 6 == 0)) {
      runs.push_back({mesh});
    }
  }
  return runs;
}

TrainConfig unequal_experts(const std::filesystem::path& folder) {
  const std::string steps = std::to_string(testing::kSteps);
  auto config = run_of(
      folder,
      "qwen3_moe",
      kMixtures,
      {{"training.load_balance_coeff", "0.01"}, {"training.steps", steps}, {"checkpoint.interval", steps}});
  config.model.args.expert_bias = true;
  return config;
}

class UnequalMoELayers : public ::testing::TestWithParam<Placed> {};
INSTANTIATE_TEST_SUITE_P(Meshes, UnequalMoELayers, ::testing::ValuesIn(meshes_with_experts()), name_of);

TEST_P(UnequalMoELayers, EqualOneDevice) {
  static const Outcome wanted = [] {
    const Folder one;
    const auto config = unequal_experts(one.path());
    testing::train(config);
    return outcome_of(config);
  }();
  EXPECT_EQ(wanted.curves.at("expert_load_max").size(), static_cast<size_t>(testing::kSteps));
  EXPECT_GT(wanted.tensors.at("model.layers.0.mlp.gate.e_score_correction_bias").abs().max().item<double>(), 0);
  EXPECT_EQ(wanted.tensors.at("model.layers.2.mlp.gate.e_score_correction_bias").size(0), 4);
  const Folder folder;
  const auto config = unequal_experts(folder.path());
  train_on(GetParam().mesh, config);
  expect_equal(wanted, outcome_of(config));
}

TEST(HeterogeneousRuns, SaveAModelThatLoadsConvertsAndGenerates) {
  const Folder folder;
  const auto config = run_of(folder.path(), "qwen3_moe", kMixtures);
  testing::train(config);
  const auto checkpoint = testing::checkpoint(config, 10);
  const auto blocks = testing::families().from_hf_folder(folder.path() / "shape")->block_configs();
  EXPECT_EQ(testing::families().from_hf_folder(checkpoint)->block_configs(), blocks);

  pretrained::convert_checkpoint(
      {.model = checkpoint, .output = folder.path() / "fused", .layout = descriptor::ExpertLayout::fused},
      testing::families());
  std::vector<std::vector<int64_t>> written;
  std::vector<at::Tensor> states;
  for (const auto& path : {checkpoint, folder.path() / "fused"}) {
    const auto opened = pretrained::ModelFolder::open(path, testing::families());
    EXPECT_EQ(opened.args->block_configs(), blocks);
    const auto model = opened.load(at::kCPU, at::kDouble);
    const c10::InferenceMode inference;
    states.push_back(model->forward({.input_ids = at::arange(9).unsqueeze(0)}).hidden_states);
    written.push_back(generate(*model, {72, 101}, {.max_new_tokens = 6, .temperature = 0}));
  }
  EXPECT_TRUE(at::equal(states[0], states[1]));
  EXPECT_EQ(written[0], written[1]);
  EXPECT_EQ(written[0].size(), 6U);
}

// A linear layer in place of a sub-block computes on a part of each sequence.
TEST(HeterogeneousRuns, OfAdaptersWithDropoutOnLinearSubBlocksEqualOneDevice) {
  const std::vector<LayerShape> layers{{model::test::kLinear, 16}, {2, model::test::kLinear}, {4, 16}};
  const Folder of_base, one;
  const auto base = run_of(of_base.path(), "qwen3", layers, {{"training.steps", "5"}});
  testing::train(base);
  const Overrides adapters{
      {"training.steps", std::to_string(testing::kSteps)},
      {"checkpoint.interval", std::to_string(testing::kSteps)},
      {"checkpoint.initial_load_path", "\"" + testing::checkpoint(base, 5).string() + "\""},
      {"peft.method", "lora"},
      {"peft.r", "3"},
      {"peft.dropout", "0.25"},
      {"peft.target_pattern", "'.*(linear_attn|linear_mlp|_proj)'"}};
  const auto on_one = run_of(one.path(), "qwen3", layers, adapters);
  testing::train(on_one);
  const Outcome wanted = outcome_of(on_one, "adapter_model");
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 4}, Mesh{.cp = 2, .tp = 2}, Mesh{.cp = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = run_of(folder.path(), "qwen3", layers, adapters);
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config, "adapter_model"));
  }
}

TEST(HeterogeneousRuns, RefuseUnsupportedOptions) {
  const Folder folder;
  const auto problem = [&](const std::vector<LayerShape>& layers, const Overrides& more, const Mesh& mesh = {}) {
    try {
      const auto config = run_of(folder.path(), "qwen3_moe", layers, more);
      mesh.world() > 1 ? train_on(mesh, config) : static_cast<void>(testing::train(config));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(
      problem(kMixtures, {{"training.router_aux_loss_coef", "0.01"}}),
      HasSubstr("training.router_aux_loss_coef: this loss and training.router_z_loss_coef count"));
  EXPECT_THAT(
      problem({{4, 16}, {4, 16}, {0, 0}, {0, 0}, {2, 16}, {4, 16}}, {}, {.pp = 3}),
      HasSubstr("is empty: all sub-blocks"));
}

}  // namespace
}  // namespace lehr::train
