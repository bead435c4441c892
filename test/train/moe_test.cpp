// Training models with experts.
#include <gtest/gtest.h>

#include "lehr/metric/metrics_log.h"
#include "lehr/state/weights.h"
#include "test/base/error_of.h"
#include "test/train/given_batches.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::curve;
using testing::Folder;
using testing::tiny_run;
using testing::train;

TrainConfig run_with_experts(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides overrides{
      {"model.name", "qwen3_moe"},
      {"model.args.num_experts", "8"},
      {"model.args.num_experts_per_tok", "2"},
      {"model.args.moe_intermediate_size", "8"},
      {"model.args.expert_bias", "true"}};
  return tiny_run(folder, testing::joined(overrides, more));
}

TEST(Experts, StoppedAndResumedEqualsNeverStoppedBitForBit) {
  const Folder whole;
  const Folder parts;
  const Overrides overrides{
      {"training.mixed_precision_param", "bfloat16"},
      {"training.router_aux_loss_coef", "0.01"},
      {"training.router_z_loss_coef", "0.001"}};
  const auto once = run_with_experts(whole.path(), overrides);
  train(once);
  const auto twice = run_with_experts(parts.path(), overrides);
  EXPECT_TRUE(train(twice, 5).stopped);
  train(twice);
  const auto last = [](const TrainConfig& config) {
    return std::filesystem::path(config.job.dump_folder) / "checkpoints/step-12";
  };
  const state::WeightReader a(last(once));
  const state::WeightReader b(last(twice));
  EXPECT_EQ(a.names(), b.names());
  for (const auto& name : a.names()) {
    EXPECT_TRUE(a.tensor(name).equal(b.tensor(name))) << name;
  }
  for (const char* key : {"loss", "load_balancing_loss", "router_z_loss", "expert_load_max"}) {
    EXPECT_EQ(curve(once, key), curve(twice, key)) << key;
    EXPECT_EQ(curve(once, key).size(), 12U) << key;
  }
  const at::Tensor bias = a.tensor("model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(bias.scalar_type(), at::kFloat);
  EXPECT_GT(bias.abs().max().item<float>(), 0);
  const auto picture = [](const TrainConfig& config) {
    return read_file(std::filesystem::path(config.job.dump_folder) / "expert_load.svg");
  };
  EXPECT_EQ(picture(once), picture(twice)) << "of both starts";
}

// In float64, so that only rounding (1e-12 relative) is left. The bias is updated once per step, by the load of all
// tokens of the step.
TEST(Experts, MicrobatchSizeDoesNotChangeTheLoss) {
  std::vector<std::vector<double>> runs;
  for (const char* rows : {"1", "4"}) {
    const Folder folder;
    const auto config =
        run_with_experts(folder.path(), {{"training.local_batch_size", rows}, {"training.dtype", "float64"}});
    train(config);
    runs.push_back(curve(config, "loss"));
  }
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_NEAR(runs[0][i], runs[1][i], 1e-12 * runs[0][i]);
  }
}

TEST(Experts, HaveAMoreEvenLoadWithTheBias) {
  std::vector<double> loads;
  for (const char* rate : {"0", "0.01"}) {
    const Folder folder;
    const auto config = run_with_experts(
        folder.path(),
        {{"training.load_balance_coeff", rate}, {"training.steps", "40"}, {"model.args.initializer_range", "0.3"}});
    train(config);
    const auto load = curve(config, "expert_load_max");
    loads.push_back(std::accumulate(load.end() - 10, load.end(), 0.0) / 10);
  }
  EXPECT_LT(loads[1], 0.75 * loads[0]);
}

// Batches of four sequences of 20 tokens, in which two documents are packed, each with this many positions of padding.
std::vector<Batch> steps_with_padding(int64_t padding) {
  at::manual_seed(5);
  const auto padded = [&](const at::Tensor& tokens, int64_t value) {
    return at::constant_pad_nd(tokens, {0, padding}, value);
  };
  const at::Tensor positions = at::cat({at::arange(9, at::kLong), at::arange(11, at::kLong)}).expand({4, 20});
  const at::Tensor documents = at::cat({at::zeros({9}, at::kLong), at::ones({11}, at::kLong)}).expand({4, 20});
  std::vector<Batch> steps;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor ids = at::randint(257, {4, 21}, at::kLong);
    steps.push_back(
        {{"input_ids", padded(ids.narrow(1, 0, 20), 7)},
         {"labels", padded(ids.narrow(1, 1, 20), nn::kIgnoreIndex)},
         {"position_ids", padded(positions, 0)},
         {"document_ids", padded(documents, -1)}});
  }
  return steps;
}

// Padding takes part in the sums of some operators, but has no value or gradient there: only rounding is left.
TEST(Experts, DoNotCountPadding) {
  for (const char* mode : {"none", "full"}) {
    std::vector<TrainConfig> runs;
    const Folder without, with;
    for (const auto& [folder, padding] : {std::pair(without.path(), 0), std::pair(with.path(), 12)}) {
      const auto config = run_with_experts(
          folder,
          {{"training.dtype", "float64"},
           {"training.steps", "4"},
           {"training.router_aux_loss_coef", "0.01"},
           {"training.router_z_loss_coef", "0.001"},
           {"training.load_balance_coeff", "0.01"},
           {"activation_checkpoint.mode", mode},
           {"checkpoint.interval", "4"},
           {"validation.enable", "false"}});
      TrainSpec spec = testing::specs().at(config.model);
      testing::give_batches(spec, steps_with_padding(padding));
      TrainSpecs list;
      list.add(spec);
      Logger log("", true);
      Trainer(config, {.specs = list, .log = log}).run();
      runs.push_back(config);
    }
    for (const char* key :
         {"loss", "grad_norm", "load_balancing_loss", "router_z_loss", "expert_load_max", "num_tokens"}) {
      const auto expected = curve(runs[0], key), found = curve(runs[1], key);
      ASSERT_EQ(found.size(), 4U) << key;
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-12 * expected[i]) << key << " of step " << i + 1 << ", " << mode;
      }
    }
    const auto last = [](const TrainConfig& config) {
      return testing::tensors(std::filesystem::path(config.job.dump_folder) / "checkpoints/step-4", "model");
    };
    const auto expected = last(runs[0]);
    for (const auto& [name, value] : last(runs[1])) {
      EXPECT_TRUE(at::allclose(value, expected.at(name), /*rtol=*/1e-9, /*atol=*/1e-12)) << name << ", " << mode;
    }
  }
}

// The first layer of GLM-4.5 is dense, so a model of one layer has no router.
TEST(Experts, OfAModelWhoseLayersAreAllDenseHaveNoLosses) {
  const Folder folder;
  const auto config = tiny_run(
      folder.path(),
      {{"model.name", "glm4_moe"},
       {"model.args.num_hidden_layers", "1"},
       {"training.steps", "3"},
       {"training.router_aux_loss_coef", "0.01"}});
  train(config);
  const auto file = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
  EXPECT_EQ(metric::read_metric(file, "loss").values.size(), 3U);
  EXPECT_EQ(metric::read_metric(file, "load_balancing_loss").values, std::vector<double>(3, 0));
}

TEST(Experts, InvalidSettingsAreRefusedByName) {
  const Folder folder;
  const auto message = [&](const Overrides& overrides) {
    return any_error::error_of([&] { train(run_with_experts(folder.path(), overrides)); });
  };
  EXPECT_NE(message({{"model.args.num_experts_per_tok", "9"}}).find("num_experts_per_tok"), std::string::npos);
  EXPECT_NE(message({{"model.args.mlp_only_layers", "[2]"}}).find("mlp_only_layers"), std::string::npos);
  EXPECT_NE(message({{"model.name", "qwen3"}}).find("model.args.num_experts: this family"), std::string::npos);
}

}  // namespace
}  // namespace lehr::train
