// The group of each parameter, and mistakes that are refused.
#include "lehr/optim/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lehr/base/error.h"
#include "test/base/error_of.h"

namespace lehr::optim {
namespace {

const std::vector<std::string> kNames = {
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.norm.weight",
    "lm_head.weight"};

std::string error_of(const OptimizerConfig& config, const std::vector<std::string>& names = kNames) {
  return any_error::error_of([&] { const ParameterGroups groups(config, names); });
}

TEST(ParameterGroups, WithoutPatternsAllParametersAreInTheDefaultGroup) {
  const ParameterGroups groups({.lr = 0.5, .weight_decay = 0.25}, kNames);
  ASSERT_EQ(groups.groups().size(), 1U);
  EXPECT_EQ(groups.groups()[0].parameters, 5);
  EXPECT_EQ(groups.groups()[0].lr, 0.5);
  EXPECT_EQ(groups.groups()[0].weight_decay, 0.25);
}

TEST(ParameterGroups, AParameterBelongsToTheFirstPatternThatMatches) {
  OptimizerConfig config{.lr = 0.5, .beta1 = 0.8};
  config.param_groups = {
      {.pattern = "norm\\.weight$", .weight_decay = 0.0},
      {.pattern = "^model\\.", .lr_multiplier = 0.1, .beta2 = 0.7, .eps = 1e-3}};
  const ParameterGroups groups(config, kNames);
  EXPECT_EQ(groups.group_of("model.norm.weight"), 0U);
  EXPECT_EQ(groups.group_of("model.layers.0.input_layernorm.weight"), 0U);
  EXPECT_EQ(groups.group_of("model.embed_tokens.weight"), 1U);
  EXPECT_EQ(groups.group_of("lm_head.weight"), 2U);
  EXPECT_EQ(groups.groups()[0].weight_decay, 0.0);
  EXPECT_EQ(groups.groups()[0].lr, 0.5);
  EXPECT_DOUBLE_EQ(groups.groups()[1].lr, 0.05);
  EXPECT_EQ(groups.groups()[1].beta1, 0.8);
  EXPECT_EQ(groups.groups()[1].beta2, 0.7);
  EXPECT_EQ(groups.groups()[1].eps, 1e-3);
  EXPECT_EQ(groups.groups()[2].parameters, 1);
}

TEST(ParameterGroups, AcceptsAnAbsoluteLearningRate) {
  OptimizerConfig config;
  config.param_groups = {{.pattern = "lm_head", .lr = 0.125}};
  EXPECT_EQ(ParameterGroups(config, kNames).groups()[0].lr, 0.125);
}

TEST(ParameterGroups, RefusesAPatternWithoutParameters) {
  OptimizerConfig config;
  config.param_groups = {{.pattern = "bias$"}};
  EXPECT_THAT(
      error_of(config), testing::StartsWith("optimizer.param_groups.0.pattern: \"bias$\" matches no parameter"));
  config.param_groups = {{.pattern = "."}, {.pattern = "lm_head"}};
  EXPECT_THAT(error_of(config), testing::HasSubstr("gets no parameter, as earlier groups take all"));
}

TEST(ParameterGroups, RefusesAnInvalidPattern) {
  OptimizerConfig config;
  config.param_groups = {{.pattern = "layers.(0"}};
  EXPECT_THAT(error_of(config), testing::HasSubstr("\"layers.(0\" is not a regular expression"));
}

TEST(ParameterGroups, RefusesALearningRateGivenTwice) {
  OptimizerConfig config;
  config.param_groups = {{.pattern = "lm_head", .lr_multiplier = 0.5, .lr = 0.1}};
  EXPECT_THAT(
      error_of(config), testing::StartsWith("optimizer.param_groups.0.lr: is given together with lr_multiplier"));
}

TEST(ParameterGroups, RefusesUnknownAndDuplicateNames) {
  const ParameterGroups groups({}, kNames);
  EXPECT_THROW(groups.group_of("model.bias"), Error);
  EXPECT_THAT(error_of({}, {"a", "b", "a"}), testing::StartsWith("a: two parameters"));
}

}  // namespace
}  // namespace lehr::optim
