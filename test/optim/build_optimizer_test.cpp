// build_optimizer: the optimizer that a config names, and the keys that it may contain.
#include "lehr/optim/build_optimizer.h"

#include <gmock/gmock.h>

#include <set>

#include "lehr/optim/per_parameter.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;
using ::testing::HasSubstr;

const OptimizerContext kContext{
    .parameters = {{.name = "w", .shape = {6, 4}}, {.name = "norm", .shape = {4}}}, .seed = 1};

std::set<std::string> state_names(const OptimizerConfig& config) {
  const auto optimizer = build_optimizer(config, kContext);
  optimizer->allocate({{"w", at::zeros({6, 4}, at::kBFloat16), {}}, {"norm", at::zeros({4}, at::kBFloat16), {}}});
  std::set<std::string> names;
  for (const auto& [name, tensor] : optimizer->state()) {
    names.insert(name);
  }
  return names;
}

TEST(BuildOptimizer, BuildsTheNamedOptimizer) {
  const std::set<std::string> adam{
      "norm.exp_avg", "norm.exp_avg_sq", "norm.step", "w.exp_avg", "w.exp_avg_sq", "w.step"};
  EXPECT_EQ(state_names({}), adam);
  EXPECT_EQ(state_names({.name = OptimizerKind::adam}), adam);
  EXPECT_EQ(state_names({.name = OptimizerKind::stochastic_adamw}), adam);
  EXPECT_EQ(state_names({.name = OptimizerKind::sgd}), (std::set<std::string>{"norm.step", "w.step"}));
  EXPECT_EQ(
      state_names({.name = OptimizerKind::muon}),
      (std::set<std::string>{"norm.exp_avg", "norm.exp_avg_sq", "norm.step", "w.momentum_buffer", "w.step"}));
}

TEST(BuildOptimizer, FoundInfOnTheDeviceSkipsTheStep) {
  const OptimizerContext context{.parameters = {{.name = "w", .shape = {kSize}}}};
  for (const OptimizerConfig& config :
       {OptimizerConfig{.lr = 0.05},
        OptimizerConfig{.name = OptimizerKind::adam, .lr = 0.05},
        OptimizerConfig{.name = OptimizerKind::sgd, .lr = 0.05, .momentum = 0.9},
        OptimizerConfig{.name = OptimizerKind::stochastic_adamw, .lr = 0.05}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      if (config.name == OptimizerKind::stochastic_adamw && dtype != at::kBFloat16) {
        continue;
      }
      const auto optimizer = build_optimizer(config, context);
      ASSERT_TRUE(optimizer->takes_found_inf());
      const at::Tensor w = values(dtype);
      const auto now = [&] {
        std::vector<at::Tensor> tensors{w.clone()};
        for (const auto& [name, tensor] : optimizer->state()) {
          if (name != "w.step") {
            tensors.push_back(tensor.clone());
          }
        }
        return tensors;
      };
      const auto step = [&](float found_inf, const at::Tensor& gradient) {
        const at::Tensor divisor = at::full({}, 2.0, at::kDouble);
        optimizer->step({{"w", w, gradient}}, {.grad_divisor = divisor, .found_inf = at::full({}, found_inf)});
      };
      step(0, grads(1, dtype));
      const auto before = now();
      step(1, at::full({kSize}, std::nan(""), dtype));
      const auto left_out = now();
      step(0, grads(2, dtype));
      const auto after = now();
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(left_out[i], before[i])) << i << " " << dtype;
        EXPECT_FALSE(at::equal(after[i], before[i])) << i << " " << dtype;
      }
    }
  }
}

// An optimizer that says nothing about found_inf.
struct Plain final : PerParameterOptimizer {
  Plain() : PerParameterOptimizer({}, {"w"}, {}) {}
  void update(const GroupSettings&, const std::vector<Item>&, const StepOptions&) override {}
};

TEST(BuildOptimizer, FoundInfIsRefusedByAnOptimizerThatCannotSkipAStep) {
  Plain plain;
  EXPECT_FALSE(plain.takes_found_inf());
  EXPECT_THAT(
      error_of([&] { plain.step({}, {.found_inf = at::zeros({})}); }), HasSubstr("cannot skip a step by itself"));
}

// Bias corrections and saved state depend on the steps that were taken. One of the two parameters gets its first
// gradient later.
TEST(BuildOptimizer, StepsSkippedByFoundInfAreNotCounted) {
  const OptimizerContext context{.parameters = {{.name = "w", .shape = {kSize}}, {.name = "late", .shape = {kSize}}}};
  for (const auto kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::stochastic_adamw}) {
    const auto dtype = kind == OptimizerKind::stochastic_adamw ? at::kBFloat16 : at::kFloat;
    for (const bool read : {false, true}) {
      const auto optimizer = build_optimizer({.name = kind, .lr = 0.05}, context);
      const auto without = build_optimizer({.name = kind, .lr = 0.05}, context);
      const at::Tensor w = values(dtype), late = values(dtype);
      const at::Tensor w2 = w.clone(), late2 = late.clone();
      for (int64_t t = 1; t <= 6; ++t) {
        const bool bad = t == 1 || t == 3 || t == 4;
        const at::Tensor grad = bad ? at::full({kSize}, std::nan(""), dtype) : grads(t, dtype);
        const at::Tensor late_grad = t < 3 ? at::Tensor() : grad.clone();
        optimizer->step({{"w", w, grad}, {"late", late, late_grad}}, {.found_inf = at::full({}, bad ? 1.0f : 0.0f)});
        if (!bad) {
          without->step({{"w", w2, grad.clone()}, {"late", late2, late_grad}});
        }
        if (read) {
          entry(*optimizer, "w.step");
        }
      }
      EXPECT_TRUE(at::equal(w, w2));
      EXPECT_TRUE(at::equal(late, late2));
      EXPECT_EQ(entry(*optimizer, "w.step").item<int64_t>(), 3);
      EXPECT_EQ(entry(*optimizer, "late.step").item<int64_t>(), 2);
      EXPECT_EQ(entry(*optimizer, "w.step").item<int64_t>(), 3) << "read twice";
    }
  }
}

TEST(OptimizerConfig, HasWeightDecayByDefaultOnlyIfItIsDecoupled) {
  EXPECT_EQ(OptimizerConfig{}.weight_decay_or_default(), 0.1);
  EXPECT_EQ(OptimizerConfig{.name = OptimizerKind::muon}.weight_decay_or_default(), 0.1);
  EXPECT_EQ(OptimizerConfig{.name = OptimizerKind::adam}.weight_decay_or_default(), 0.0);
  EXPECT_EQ(OptimizerConfig{.name = OptimizerKind::sgd}.weight_decay_or_default(), 0.0);
}

TEST(OptimizerConfig, RefusesKeysThatTheOptimizerDoesNotUse) {
  const auto problems = [](OptimizerConfig config) { return error_of([&] { build_optimizer(config, kContext); }); };
  using enum OptimizerKind;
  EXPECT_EQ(
      problems({.name = adamw, .momentum = 0.9}),
      "optimizer.momentum: adamw does not use it, only sgd, muon; leave it out, or set optimizer.name");
  EXPECT_THAT(problems({.name = sgd, .beta1 = 0.8}), HasSubstr("optimizer.beta1: sgd does not use it"));
  EXPECT_THAT(problems({.name = sgd, .beta2 = 0.8}), HasSubstr("optimizer.beta2: sgd does not use it"));
  EXPECT_THAT(problems({.name = sgd, .eps = 1e-5}), HasSubstr("optimizer.eps: sgd does not use it"));
  EXPECT_THAT(problems({.name = muon, .dampening = 0.1}), HasSubstr("optimizer.dampening: muon does not use it"));
  EXPECT_THAT(problems({.name = adam, .nesterov = true}), HasSubstr("optimizer.nesterov: adam does not use it"));
  EXPECT_THAT(problems({.name = adamw, .state_dtype = "bfloat16"}), HasSubstr("only stochastic_adamw"));
  EXPECT_THAT(problems({.name = sgd, .ns_steps = 6}), HasSubstr("optimizer.ns_steps: sgd does not use it"));
  EXPECT_THAT(problems({.name = adamw, .muon_scale = MuonScale::original}), HasSubstr("optimizer.muon_scale: adamw"));
  EXPECT_THAT(problems({.name = adamw, .muon_exclude = "x"}), HasSubstr("optimizer.muon_exclude: adamw"));
  EXPECT_THAT(problems({.name = muon, .muon_exclude = "("}), HasSubstr("\"(\" is not a regular expression"));
  EXPECT_THAT(problems({.name = sgd, .nesterov = true}), HasSubstr("optimizer.nesterov: needs optimizer.momentum"));
  EXPECT_THAT(problems({.name = sgd, .dampening = 0.5}), HasSubstr("has no effect without optimizer.momentum"));
  EXPECT_THAT(
      problems({.name = sgd, .param_groups = {{.pattern = "w", .beta1 = 0.5}}}),
      HasSubstr("optimizer.param_groups.0.beta1: sgd does not use it"));
}

}  // namespace
}  // namespace lehr::optim
