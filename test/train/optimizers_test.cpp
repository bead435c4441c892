// Whole runs with each optimizer: they learn, and a stopped and resumed run equals the uninterrupted one.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "lehr/metric/metrics_log.h"
#include "lehr/optim/sgd.h"
#include "lehr/state/weights.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::curve;
using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;
using testing::train;

struct Case {
  std::string name;
  Overrides overrides;
};

std::map<std::string, at::Tensor> tensors(const TrainConfig& config, int64_t step, const std::string& stem) {
  const auto folder = std::filesystem::path(config.job.dump_folder) / "checkpoints" / ("step-" + std::to_string(step));
  const state::WeightReader reader(folder, stem);
  std::map<std::string, at::Tensor> all;
  for (const auto& name : reader.names()) {
    all[name] = reader.tensor(name).clone();
  }
  return all;
}

std::string refusal(const Overrides& overrides) {
  const Folder folder;
  return error_of([&] { train(tiny_run(folder.path(), overrides)); });
}

class Optimizers : public ::testing::TestWithParam<Case> {};

TEST_P(Optimizers, LearnAndResumeBitForBit) {
  const Folder whole;
  const Folder parts;
  Overrides overrides = GetParam().overrides;
  overrides.emplace_back("training.steps", "24");
  overrides.emplace_back("checkpoint.interval", "12");
  overrides.emplace_back("validation.freq", "24");
  const auto once = tiny_run(whole.path(), overrides);
  train(once);
  const auto twice = tiny_run(parts.path(), overrides);
  EXPECT_TRUE(train(twice, 9).stopped);
  EXPECT_EQ(train(twice).step, 24);
  EXPECT_EQ(curve(once, "loss"), curve(twice, "loss"));
  for (const char* stem : {"model", "optimizer"}) {
    const auto a = tensors(once, 24, stem);
    const auto b = tensors(twice, 24, stem);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) {
      EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
    }
  }
  // Losses start at ln 257 = 5.5; a model that has learnt the frequencies of letters is at 3.3.
  EXPECT_LT(curve(once, "loss").back(), curve(once, "loss").front() - 0.7);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Optimizers,
    ::testing::Values(
        Case{"adamw", {{"optimizer.lr", "0.01"}}},
        Case{"adam", {{"optimizer.name", "\"adam\""}, {"optimizer.lr", "0.01"}}},
        Case{
            "sgd",
            {{"optimizer.name", "\"sgd\""},
             {"optimizer.lr", "0.5"},
             {"optimizer.momentum", "0.9"},
             {"optimizer.nesterov", "true"}}},
        Case{
            "stochastic",
            {{"optimizer.name", "\"stochastic_adamw\""}, {"optimizer.lr", "0.01"}, {"training.dtype", "\"bfloat16\""}}},
        Case{
            "stochastic_bfloat16_state",
            {{"optimizer.name", "\"stochastic_adamw\""},
             {"optimizer.lr", "0.01"},
             {"optimizer.state_dtype", "\"bfloat16\""},
             {"training.dtype", "\"bfloat16\""}}},
        Case{"muon", {{"optimizer.name", "\"muon\""}, {"optimizer.lr", "0.01"}}},
        Case{
            "muon_mixed",
            {{"optimizer.name", "\"muon\""},
             {"optimizer.lr", "0.01"},
             {"training.mixed_precision_param", "\"bfloat16\""}}},
        Case{
            "muon_bfloat16",
            {{"optimizer.name", "\"muon\""}, {"optimizer.lr", "0.01"}, {"training.dtype", "\"bfloat16\""}}}),
    [](const auto& test) { return test.param.name; });

TEST(OptimizerRuns, StochasticRoundingLearnsWhereRoundingToNearestDoesNot) {
  const auto last_loss = [](const char* name, const char* dtype) {
    const Folder folder;
    const auto config = tiny_run(
        folder.path(),
        {{"optimizer.name", name},
         {"training.dtype", dtype},
         {"optimizer.lr", "4e-5"},
         {"optimizer.weight_decay", "0.0"},
         {"training.steps", "120"},
         {"checkpoint.enable", "false"},
         {"validation.enable", "false"}});
    train(config);
    const auto all = curve(config, "loss");
    double sum = 0;
    for (size_t i = all.size() - 20; i < all.size(); ++i) {
      sum += all[i] / 20;
    }
    return sum;
  };
  const double exact = last_loss("\"adamw\"", "\"float32\"");
  const double nearest = last_loss("\"adamw\"", "\"bfloat16\"");
  const double stochastic = last_loss("\"stochastic_adamw\"", "\"bfloat16\"");
  // 120 steps of 4e-5, whereas half a unit in the last place of a typical weight of 0.02 is 6e-5.
  EXPECT_GT(nearest - exact, 0.01);
  EXPECT_LT(std::abs(stochastic - exact), 0.2 * (nearest - exact));
}

TEST(OptimizerRuns, AcceptTorchtitansNames) {
  const Folder folder;
  EXPECT_EQ(tiny_run(folder.path(), {{"optimizer.name", "\"Adam\""}}).optimizer.name, optim::OptimizerKind::adam);
  const auto config = tiny_run(folder.path(), {{"optimizer.name", "\"AdamW\""}});
  EXPECT_THAT(to_toml(config), HasSubstr("name = 'adamw'"));
}

TEST(OptimizerRuns, RefuseParametersThatTheOptimizerCannotTrain) {
  EXPECT_THAT(
      refusal({{"optimizer.name", "\"stochastic_adamw\""}}),
      HasSubstr("stochastic_adamw updates bfloat16 parameters: set training.dtype"));
  EXPECT_THAT(refusal({{"optimizer.momentum", "0.9"}}), HasSubstr("optimizer.momentum: adamw does not use it"));
  EXPECT_THAT(
      refusal({{"optimizer.name", "\"muon\""}, {"optimizer.muon_exclude", "\".\""}}),
      HasSubstr("leaves muon no matrix"));
}

TEST(OptimizerRuns, RefuseTheStateOfAnotherOptimizerEvenIfItWouldFit) {
  const Folder folder;
  train(tiny_run(folder.path(), {{"training.steps", "4"}}));
  for (const char* other : {"\"sgd\"", "\"adam\""}) {
    EXPECT_THAT(
        any_error::error_of([&] {
          train(tiny_run(folder.path(), {{"optimizer.name", other}}));
        }),
        HasSubstr("optimizer.name: the run so far trained with adamw"));
  }
}

TEST(OptimizerRuns, RefuseOtherStateByOneParameterAndTheKeys) {
  const auto resumed = [](const Overrides& before, const Overrides& now) {
    const Folder folder;
    train(tiny_run(folder.path(), before), 2);
    return any_error::error_of([&] { train(tiny_run(folder.path(), now)); });
  };
  const Overrides::value_type sgd{"optimizer.name", "\"sgd\""}, muon{"optimizer.name", "\"muon\""};
  const std::string momentum = resumed({sgd}, {sgd, {"optimizer.momentum", "0.9"}});
  EXPECT_THAT(momentum, HasSubstr("the run so far kept step (I64) ("));
  EXPECT_THAT(momentum, HasSubstr("this one keeps momentum_buffer (F32), step (I64); keep the keys of [optimizer]"));
  EXPECT_THAT(momentum, ::testing::Not(HasSubstr("missing")));
  EXPECT_THAT(
      resumed({muon}, {muon, {"optimizer.muon_exclude", "\"norm\""}}),
      HasSubstr("kept exp_avg (F32), exp_avg_sq (F32), step (I64) ("));
}

// Sign descent, as an example of a program's own optimizer.
class SignDescent final : public optim::Optimizer {
 public:
  explicit SignDescent(double lr) : lr_(lr) {}
  void allocate(const std::vector<optim::NamedParameter>&) override {}
  void step(const std::vector<optim::NamedParameter>& parameters, const optim::StepOptions& options = {}) override {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters) {
      parameter.value.detach().sub_(parameter.grad.sign(), lr_ * options.lr_factor);
    }
    steps_.add_(1);
  }
  std::vector<std::pair<std::string, at::Tensor>> state() const override { return {{"sign.steps", steps_}}; }

 private:
  double lr_;
  at::Tensor steps_ = at::zeros({}, at::TensorOptions(at::kLong));
};

TEST(OptimizerRuns, MayUseTheProgramsOwnOptimizer) {
  const Folder folder;
  TrainSpec spec{.family = model::qwen3_dense_family()};
  spec.build.optimizer = [](const optim::OptimizerConfig& config, const optim::OptimizerContext& context) {
    EXPECT_EQ(context.seed, 42U);
    EXPECT_EQ(context.parameters.front().name, "model.embed_tokens.token_embedding.default.weight");
    EXPECT_THAT(context.parameters.front().shape, ::testing::ElementsAre(257, 16));
    return std::make_unique<SignDescent>(config.lr);
  };
  TrainSpecs list;
  list.add(spec);
  const auto run = [&](int64_t stop_after) {
    Logger log("", true);
    int64_t steps = 0;
    Trainer trainer(
        tiny_run(folder.path(), {{"optimizer.lr", "0.003"}, {"training.steps", "24"}}),
        {.specs = list, .log = log, .stop_requested = [&] { return stop_after > 0 && steps >= stop_after; }});
    trainer.events().subscribe(Event::step_end, [&](const EventContext&) { ++steps; });
    return trainer.run();
  };
  EXPECT_TRUE(run(10).stopped);
  run(0);
  const auto config = tiny_run(folder.path());
  EXPECT_EQ(tensors(config, 24, "optimizer").at("sign.steps").item<int64_t>(), 24);
  EXPECT_LT(curve(config, "loss").back(), curve(config, "loss").front() - 0.7);
}

}  // namespace
}  // namespace lehr::train
