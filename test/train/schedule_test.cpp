// The learning-rate schedule, from the config through the trainer to the optimizer and the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lehr/metric/metrics_log.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::tiny_run;

// Forwards everything to the default optimizer, and records the factors.
class KeepFactors : public optim::Optimizer {
 public:
  KeepFactors(std::unique_ptr<optim::Optimizer> usual, std::vector<double>& factors)
      : usual_(std::move(usual)), factors_(factors) {}
  void allocate(const std::vector<optim::NamedParameter>& parameters) override { usual_->allocate(parameters); }
  void step(const std::vector<optim::NamedParameter>& parameters, const optim::StepOptions& options) override {
    factors_.push_back(options.lr_factor);
    usual_->step(parameters, options);
  }
  bool takes_found_inf() const override { return usual_->takes_found_inf(); }
  std::vector<std::pair<std::string, at::Tensor>> state() const override { return usual_->state(); }

 private:
  std::unique_ptr<optim::Optimizer> usual_;
  std::vector<double>& factors_;
};

struct Rates {
  std::vector<double> factors;  // received by the optimizer
  std::vector<double> logged;   // learning rates in metrics.jsonl
};

// A run of five steps that is stopped after the given steps, and then continues.
Rates rates_of(bool deferred_results, const std::vector<int64_t>& stops) {
  const Folder folder;
  const TrainConfig config = tiny_run(
      folder.path(),
      {{"training.steps", "5"},
       {"optimizer.lr", "0.001"},
       {"lr_scheduler.warmup_steps", "2"},
       {"lr_scheduler.decay_type", "\"linear\""},
       {"validation.enable", "false"}});
  Rates rates;
  TrainSpec spec{.family = model::qwen3_dense_family()};
  spec.build.optimizer = [&](const optim::OptimizerConfig& optimizer, const optim::OptimizerContext& context) {
    return std::make_unique<KeepFactors>(optim::build_optimizer(optimizer, context), rates.factors);
  };
  TrainSpecs list;
  list.add(spec);
  Logger quiet("", true);
  const auto run_until = [&](int64_t last) {
    int64_t done = static_cast<int64_t>(rates.factors.size());
    Trainer trainer(
        config,
        {.specs = list,
         .log = quiet,
         .stop_requested = [&] { return ++done == last; },
         .deferred_results = deferred_results});
    EXPECT_EQ(trainer.run().step, last);
  };
  for (const int64_t stop : stops) {
    run_until(stop);
  }
  run_until(5);
  rates.logged = metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "lr").values;
  return rates;
}

// Two steps of warm-up, then a decay over three more, which would reach its end one step after the run.
TEST(Schedule, AppliesTheFactorOfEachStep) {
  const std::vector<double> wanted{1. / 2, 1, 1, 1 - 1. / 3, 1 - 2. / 3};
  for (const bool deferred_results : {false, true}) {
    for (const auto& stops : {std::vector<int64_t>{}, {1, 3}}) {
      const Rates rates = rates_of(deferred_results, stops);
      ASSERT_EQ(rates.factors.size(), wanted.size());
      ASSERT_EQ(rates.logged.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_DOUBLE_EQ(rates.factors[i], wanted[i]) << "step " << i + 1;
        EXPECT_DOUBLE_EQ(rates.logged[i], 0.001 * wanted[i]) << "step " << i + 1;
      }
    }
  }
}

// Returns the standard error of a run of `steps` steps, with a schedule of six, before its first step.
std::string report_of(const char* steps, const char* min_lr_factor) {
  const Folder folder;
  const TrainConfig config = tiny_run(
      folder.path(),
      {{"training.steps", steps},
       {"optimizer.lr", "0.001"},
       {"lr_scheduler.total_steps", "6"},
       {"lr_scheduler.min_lr_factor", min_lr_factor}});
  const TrainSpecs list = testing::specs();
  ::testing::internal::CaptureStderr();
  Logger log;
  const Trainer trainer(config, {.specs = list, .log = log});
  return ::testing::internal::GetCapturedStderr();
}

TEST(Schedule, WarnsIfItEndsBeforeTheRun) {
  using ::testing::HasSubstr;
  const std::string expected =
      "lr_scheduler.total_steps = 6: the schedule ends at step 6, before training.steps = 9, and later steps keep its "
      "last learning rate, ";
  EXPECT_THAT(report_of("9", "0"), HasSubstr(expected + "0;"));
  EXPECT_THAT(report_of("9", "0.1"), HasSubstr(expected + "0.0001;"));
  EXPECT_THAT(report_of("6", "0"), ::testing::Not(HasSubstr("lr_scheduler.total_steps")));
  EXPECT_THAT(report_of("5", "0"), ::testing::Not(HasSubstr("lr_scheduler.total_steps")));
}

}  // namespace
}  // namespace lehr::train
