// Training in float8: gradients, losses, checkpoints, and errors before a run starts.
#include "lehr/train/float8.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/nn/float8.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;

using Overrides = std::vector<std::pair<std::string, std::string>>;

// The tiny run with sizes that float8 supports.
TrainConfig float8_run(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides overrides{{"float8.enable", "true"}, {"model.args.intermediate_size", "32"}, {"model.args.head_dim", "16"}};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return tiny_run(folder, overrides);
}

std::vector<double> losses(const TrainConfig& config) {
  return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "loss").values;
}

std::string problem_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

// The change of each parameter in a run of one step. With plain SGD that is its gradient times the learning rate.
std::map<std::string, at::Tensor> change_of_one_step(const TrainConfig& config) {
  Logger quiet("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = quiet});
  std::map<std::string, at::Tensor> before, change;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    before[name] = parameter->value().detach().clone();
  }
  trainer.run();
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    change[name] = parameter->value().detach() - before.at(name);
  }
  return change;
}

// Rounding an operand to float8 costs 2.6 % of it on average. Gradients pass through up to fourteen layers forward and
// as many backward, with independent errors: some 3 to 12 % of each gradient. Layers that do not use float8 would have
// no error; a lost or doubled scale would cause an error of at least half of the gradient.
TEST(Float8Run, GradientsHaveTheErrorOfRoundedOperands) {
  const Overrides one_step{
      {"training.steps", "1"},
      {"lr_scheduler.warmup_steps", "0"},
      {"optimizer.name", "sgd"},
      {"optimizer.lr", "1"},
      {"training.max_norm", "0"}};
  const Folder without;
  auto plain = float8_run(without.path(), one_step);
  plain.float8.enable = false;
  const auto wanted = change_of_one_step(plain);
  for (const auto recipe : {ops::Float8Recipe::rowwise, ops::Float8Recipe::rowwise_with_gw_hp}) {
    const Folder folder;
    auto config = float8_run(folder.path(), one_step);
    config.float8.recipe = recipe;
    for (const auto& [name, found] : change_of_one_step(config)) {
      const at::Tensor& expected = wanted.at(name);
      const double error = (found - expected).norm().item<double>() / expected.norm().item<double>();
      EXPECT_GT(error, 0.01) << name;
      EXPECT_LT(error, 0.25) << name;
    }
  }
}

// Losses of 20 steps in which the model learns: within 2 % of those without float8 (0.5 % was observed), and not equal.
TEST(Float8Run, LearnsLikeARunWithoutFloat8) {
  for (const char* type : {"float32", "bfloat16"}) {
    const Overrides precision{
        {"training.mixed_precision_param", type}, {"training.steps", "20"}, {"optimizer.lr", "0.005"}};
    const Folder without;
    auto plain = float8_run(without.path(), precision);
    plain.float8.enable = false;
    testing::train(plain);
    const auto wanted = losses(plain);
    EXPECT_LT(wanted.back(), wanted.front() - 1) << "nats; a run that does not learn compares nothing";
    for (const auto recipe : {ops::Float8Recipe::rowwise, ops::Float8Recipe::rowwise_with_gw_hp}) {
      const Folder folder;
      auto config = float8_run(folder.path(), precision);
      config.float8.recipe = recipe;
      testing::train(config);
      const auto found = losses(config);
      ASSERT_EQ(found.size(), wanted.size());
      EXPECT_NE(found.back(), wanted.back());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], wanted[i], 0.02 * wanted[i]) << type << " step " << i;
      }
    }
  }
}

TEST(Float8Run, SavesWeightsInTheirOwnTypeAndResumesBitForBit) {
  const Folder whole, stopped;
  const auto config = float8_run(whole.path());
  testing::train(config);
  const auto parts = float8_run(stopped.path());
  testing::train(parts, 5);
  testing::train(parts);
  const auto saved = testing::tensors(testing::checkpoint(config, 12), "model");
  testing::expect_same_bits(saved, testing::tensors(testing::checkpoint(parts, 12), "model"));
  for (const auto& [name, tensor] : saved) {
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
  }
}

TEST(Float8Run, ConvertsAllLayersExceptTheHeadAndTheExcluded) {
  const Folder folder;
  const auto config =
      float8_run(folder.path(), {{"float8.exclude", R"(["model\\.layers\\.0\\..*", ".*\\.down_proj"])"}});
  Logger quiet("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = quiet});
  EXPECT_EQ(nn::count_float8(trainer.model()), 6);  // of 14: one layer of seven, minus one
  EXPECT_EQ(
      describe_float8(config.float8, trainer.model(), at::kCPU),
      "6 of 15 linear layers, rowwise; emulated on the CPU, without a speed-up");
}

TEST(Float8Run, ReportsUnsupportedSizes) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"float8.enable", "true"}, {"model.args.head_dim", "16"}});
  Logger quiet("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = quiet});
  EXPECT_THAT(
      describe_float8(config.float8, trainer.model(), at::kCPU),
      HasSubstr("8 of 15 linear layers, rowwise; 6 do not use float8, with sizes that are not multiples of 16: "
                "model.layers.0.mlp.gate_proj, model.layers.0.mlp.up_proj, model.layers.0.mlp.down_proj, ...;"));
}

TEST(Float8Run, RefusesInvalidSettings) {
  const Folder folder;
  const auto start = [&](const Overrides& overrides) {
    return problem_of([&] { testing::train(float8_run(folder.path(), overrides)); });
  };
  EXPECT_THAT(
      start({{"float8.exclude", R"([".*down_porj"])"}}),
      HasSubstr("float8.exclude: \".*down_porj\" matches the whole name of no linear layer; the nearest are: "
                "model.layers.0.mlp.down_proj"));
  EXPECT_THAT(
      start({{"float8.exclude", "[\"model.*\"]"}}),
      HasSubstr("float8.enable: none of the model's 15 linear layers would compute in float8: 0 have sizes"));
  EXPECT_THAT(
      start({{"float8.exclude", "[\"a\", \"(\"]"}}), HasSubstr("float8.exclude.1: \"(\" is not a regular expression"));
  EXPECT_THAT(start({{"float8.recipe", "tensorwise"}}), HasSubstr("float8.recipe"));
}

}  // namespace
}  // namespace lehr::train
