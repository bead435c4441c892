// Training in float8: gradients, losses, checkpoints, and errors before a run starts.
#include "lehr/train/float8.h"

#include <gmock/gmock.h>

#include "lehr/metric/metrics_log.h"
#include "lehr/nn/float8.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::curve;
using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;

// The tiny run with sizes that float8 supports.
TrainConfig float8_run(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides overrides{{"float8.enable", "true"}, {"model.args.intermediate_size", "32"}, {"model.args.head_dim", "16"}};
  return tiny_run(folder, testing::joined(overrides, more));
}

// The same with experts, all of whose projections are in float8.
TrainConfig expert_run(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides overrides{
      {"model.name", "qwen3_moe"},
      {"model.args.num_experts", "4"},
      {"model.args.num_experts_per_tok", "2"},
      {"model.args.moe_intermediate_size", "16"},
      {"float8.moe_fqns", R"(['.*\.grouped_experts\..*'])"}};
  return float8_run(folder, testing::joined(overrides, more));
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
    const auto wanted = curve(plain, "loss");
    EXPECT_LT(wanted.back(), wanted.front() - 1) << "nats; a run that does not learn compares nothing";
    for (const auto recipe : {ops::Float8Recipe::rowwise, ops::Float8Recipe::rowwise_with_gw_hp}) {
      const Folder folder;
      auto config = float8_run(folder.path(), precision);
      config.float8.recipe = recipe;
      testing::train(config);
      const auto found = curve(config, "loss");
      ASSERT_EQ(found.size(), wanted.size());
      EXPECT_NE(found.back(), wanted.back());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], wanted[i], 0.02 * wanted[i]) << type << " step " << i;
      }
    }
  }
}

// Only experts compute in float8: their gradients have the error of their own rounding, also where the experts with few
// tokens differ from the others. Routing is the same in the first step but for tokens whose two best experts are close.
TEST(Float8Run, GradientsOfExpertsHaveTheErrorOfRoundedOperands) {
  const Overrides one_step{
      {"training.steps", "1"},
      {"lr_scheduler.warmup_steps", "0"},
      {"optimizer.name", "sgd"},
      {"optimizer.lr", "1"},
      {"training.max_norm", "0"},
      {"model.args.num_experts_per_tok", "4"},  // all: no token changes its expert
      {"float8.exclude", "['.*']"}};
  const Folder without;
  auto plain = expert_run(without.path(), one_step);
  plain.float8 = {};
  const auto wanted = change_of_one_step(plain);
  for (const auto recipe : {ops::Float8Recipe::rowwise, ops::Float8Recipe::rowwise_with_gw_hp}) {
    const Folder folder;
    auto config = expert_run(folder.path(), one_step);
    config.float8.recipe = recipe;
    int64_t compared = 0;
    for (const auto& [name, found] : change_of_one_step(config)) {
      if (name.find("grouped_experts") == std::string::npos) {
        continue;
      }
      const at::Tensor& expected = wanted.at(name);
      const double error = (found - expected).norm().item<double>() / expected.norm().item<double>();
      EXPECT_GT(error, 0.01) << name;
      EXPECT_LT(error, 0.25) << name;
      ++compared;
    }
    EXPECT_EQ(compared, 6);
  }
}

TEST(Float8Run, WithExpertsLearnsLikeARunWithoutFloat8) {
  const Overrides more{
      {"training.mixed_precision_param", "bfloat16"}, {"training.steps", "20"}, {"optimizer.lr", "0.005"}};
  const Folder without, with;
  auto plain = expert_run(without.path(), more);
  plain.float8 = {};
  testing::train(plain);
  const auto wanted = curve(plain, "loss");
  EXPECT_LT(wanted.back(), wanted.front() - 1) << "nats; a run that does not learn compares nothing";
  const auto config = expert_run(with.path(), more);
  testing::train(config);
  const auto found = curve(config, "loss");
  EXPECT_NE(found.back(), wanted.back());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], 0.02 * wanted[i]) << "step " << i;
  }
}

TEST(Float8Run, WithExpertsSavesWeightsInTheirOwnTypeAndResumesBitForBit) {
  const Folder whole, stopped;
  const auto config = expert_run(whole.path());
  testing::train(config);
  const auto parts = expert_run(stopped.path());
  testing::train(parts, 5);
  testing::train(parts);
  testing::expect_same_bits(
      testing::tensors(testing::checkpoint(config, 12), "model"),
      testing::tensors(testing::checkpoint(parts, 12), "model"));
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

TEST(Float8Run, ConvertsTheExpertsThatAreNamed) {
  const Folder folder;
  const auto described = [&](const Overrides& more) {
    const auto config = expert_run(folder.path(), more);
    Logger quiet("", true);
    const auto list = testing::specs();
    Trainer trainer(config, {.specs = list, .log = quiet});
    return describe_float8(config.float8, trainer.model(), at::kCPU);
  };
  EXPECT_EQ(
      described({}),
      "8 of 11 linear layers and 6 of 6 projections of experts, rowwise; emulated on the CPU, without a speed-up");
  EXPECT_EQ(
      described({{"float8.moe_fqns", "[]"}}),
      "8 of 11 linear layers, rowwise; emulated on the CPU, without a speed-up");
  EXPECT_THAT(
      described({{"float8.moe_fqns", R"(['.*\.1\..*experts.*'])"}, {"float8.exclude", "['.*']"}}),
      HasSubstr("0 of 11 linear layers and 3 of 6 projections of experts, rowwise;"));
}

TEST(Float8Run, RefusesInvalidSettings) {
  const Folder folder;
  const auto start = [&](const Overrides& overrides) {
    return error_of([&] { testing::train(float8_run(folder.path(), overrides)); });
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
  EXPECT_THAT(
      start({{"float8.moe_fqns", "['.*']"}}),
      HasSubstr("float8.moe_fqns: expected a model with experts, found one without; leave the key out"));
  EXPECT_THAT(
      start({{"float8.moe_fqns", "['.*']"}, {"float8.enable", "false"}}),
      HasSubstr("float8.moe_fqns: has no effect without float8.enable = true; set it, or leave the key out"));
  EXPECT_THAT(
      start({{"float8.moe_fqns", "['a', '(']"}}), HasSubstr("float8.moe_fqns.1: \"(\" is not a regular expression"));
  const auto start_experts = [&](const Overrides& overrides) {
    return error_of([&] { testing::train(expert_run(folder.path(), overrides)); });
  };
  EXPECT_THAT(
      start_experts({{"float8.moe_fqns", "['experts']"}}),
      HasSubstr("float8.moe_fqns: \"experts\" matches the whole name of no projection of experts; the nearest are: "
                "model.layers.0.mlp.grouped_experts."));
  EXPECT_THAT(
      start_experts({{"model.args.moe_intermediate_size", "24"}}),
      HasSubstr("float8.moe_fqns: none of the projections of experts that it names would compute in float8"));
}

}  // namespace
}  // namespace lehr::train
