// activation_checkpoint.mode = "auto": the choice for an amount of memory, what the log says about it, and that the
// numbers of a run do not depend on it.
#include "lehr/train/recompute_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "lehr/base/error.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/metric/metrics_log.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::tiny_run;

std::string name_of(const TrainConfig& config) {
  const ActivationCheckpointConfig& checkpointing = config.activation_checkpoint;
  return checkpointing.mode == "selective" ? checkpointing.selective_ac_option : checkpointing.mode;
}

// A model whose activations decide about its peak: more recomputation needs less.
StepForecast of_large_activations(const TrainConfig& config) {
  static const std::map<std::string, StepForecast> kSteps{
      {"none", {.peak = 1000}},
      {"op 2", {.peak = 900, .extra_flops = 0.07}},
      {"2", {.peak = 700, .extra_flops = 0.17}},
      {"op", {.peak = 800, .extra_flops = 0.14}},
      {"full", {.peak = 400, .extra_flops = 0.33}}};
  return kSteps.at(name_of(config));
}

std::string chosen(int64_t granted, const std::function<StepForecast(const TrainConfig&)>& forecast) {
  return choose_recompute({}, granted, forecast).best().name;
}

TEST(RecomputeChoice, TakesTheFewestFlopsThatFit) {
  EXPECT_EQ(chosen(5000, of_large_activations), "none");
  EXPECT_EQ(chosen(1000, of_large_activations), "none");
  EXPECT_EQ(chosen(999, of_large_activations), "op 2");
  EXPECT_EQ(chosen(899, of_large_activations), "op") << "fewer FLOPs than every second layer";
  EXPECT_EQ(chosen(799, of_large_activations), "2");
  EXPECT_EQ(chosen(400, of_large_activations), "full");
}

TEST(RecomputeChoice, TakesTheLeastMemoryIfNothingFits) {
  const RecomputeChoice choice = choose_recompute({}, 399, of_large_activations);
  EXPECT_EQ(choice.best().name, "full");
  EXPECT_FALSE(choice.fits);
  EXPECT_THAT(choice.describe(), HasSubstr("more than the 399 B granted"));
}

TEST(RecomputeChoice, RecomputesNothingForNothing) {
  const auto no_activations = [](const TrainConfig& config) {
    return StepForecast{.peak = 1000, .extra_flops = of_large_activations(config).extra_flops};
  };
  EXPECT_EQ(chosen(10, no_activations), "none");
}

TEST(RecomputeChoice, CountsTheCopyOfASave) {
  const auto with_copies = [](const TrainConfig& config) {
    StepForecast step = of_large_activations(config);
    step.copied = 500;
    return step;
  };
  EXPECT_EQ(chosen(1500, with_copies), "none");
  EXPECT_EQ(chosen(1499, with_copies), "op 2");
}

TEST(RecomputeChoice, SaysWhatEachChoiceCosts) {
  EXPECT_EQ(
      choose_recompute({}, 900, of_large_activations).describe(),
      "\"op 2\": 900 B, 7 % more FLOPs, of 900 B granted; none: 0.977 KiB; \"op\": 800 B, 14 % more FLOPs; \"2\": 700 "
      "B, "
      "17 % more FLOPs; full: 400 B, 33 % more FLOPs");
}

TEST(RecomputeChoice, NamesTheKeyForAnOptionThatAutoIgnores) {
  const Folder folder;
  EXPECT_THAT(
      [&] {
        tiny_run(folder.path(), {{"activation_checkpoint.selective_ac_option", "\"op\""}});
      },
      ::testing::Throws<Error>(::testing::Property(
          &Error::what,
          HasSubstr("activation_checkpoint.selective_ac_option: "
                    "activation_checkpoint.mode = \"auto\" chooses"))));
}

struct Trained {
  std::string chosen;
  std::string report;
  std::string saved;  // config.toml
  std::vector<double> losses;
};

// Trains with the forecasts above and so much memory.
Trained train(int64_t memory, const Overrides& overrides = {}) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), overrides);
  ::testing::internal::CaptureStderr();
  const auto list = testing::specs();
  Trained result;
  {
    Logger log;
    Trainer trainer(
        config,
        {.specs = list,
         .log = log,
         .forecast = [](const TrainConfig& with, const auto&...) { return of_large_activations(with); },
         .memory = memory});
    result.chosen = name_of(trainer.config());
    trainer.run();
  }
  result.report = ::testing::internal::GetCapturedStderr();
  result.saved = read_file(std::filesystem::path(config.job.dump_folder) / "config.toml");
  result.losses = metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "loss").values;
  return result;
}

TEST(RecomputeChoice, ChangesNoBitOfARun) {
  const Trained all_kept = train(5000);
  EXPECT_EQ(all_kept.chosen, "none");
  EXPECT_FALSE(all_kept.losses.empty());
  for (const auto& [memory, name] :
       {std::pair(900, "op 2"), std::pair(800, "op"), std::pair(700, "2"), std::pair(500, "full")}) {
    const Trained other = train(memory);
    EXPECT_EQ(other.chosen, name);
    EXPECT_EQ(other.losses, all_kept.losses) << name;
  }
}

TEST(RecomputeChoice, IsOneLineOfTheReportAndNoPartOfTheSavedConfig) {
  const Trained run = train(900);
  EXPECT_THAT(run.report, HasSubstr("recompute  \"op 2\": 900 B, 7 % more FLOPs, of 900 B granted; none: 0.977 KiB; "));
  EXPECT_THAT(run.saved, HasSubstr("mode = 'auto'"));
  EXPECT_THAT(run.saved, Not(HasSubstr("mode = 'selective'")));
}

TEST(RecomputeChoice, LeavesAModeOfTheConfigAlone) {
  const Trained run = train(5000, {{"activation_checkpoint.mode", "full"}});
  EXPECT_EQ(run.chosen, "full");
  EXPECT_THAT(run.report, Not(HasSubstr("recompute  ")));
}

// Later the system may have ended the process already.
TEST(RecomputeChoice, WarnsOfTooLittleMemoryBeforeTheModelIsBuilt) {
  for (const auto& [mode, need] :
       {std::pair("auto", "400 B"), std::pair("full", "400 B"), std::pair("none", "0.977")}) {
    const std::string report = train(399, {{"activation_checkpoint.mode", mode}}).report;
    const size_t warning = report.find(fmt::format("memory: the run needs {}", need));
    ASSERT_NE(warning, std::string::npos) << report;
    EXPECT_LT(warning, report.find("model      ")) << report;
    EXPECT_EQ(report.find("mode = \"auto\"") != std::string::npos, mode != std::string("auto"));
  }
  EXPECT_THAT(train(5000, {{"activation_checkpoint.mode", "full"}}).report, Not(HasSubstr("memory: ")));
}

TEST(RecomputeChoice, IsTheUsualOneWithoutAForecast) {
  const Folder folder;
  ::testing::internal::CaptureStderr();
  const auto list = testing::specs();
  Logger log;
  const Trainer trainer(
      tiny_run(folder.path()),
      {.specs = list, .log = log, .forecast = [](const auto&...) -> StepForecast { fail("no meta kernel"); }});
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(name_of(trainer.config()), "op 2");
  EXPECT_THAT(report, HasSubstr("recompute  \"op 2\": the memory of a step cannot be predicted: no meta kernel"));
}

TEST(RecomputeChoice, SaysWhyThereIsNoForecastWithoutAStackTrace) {
  const Folder folder;
  ::testing::internal::CaptureStderr();
  const auto list = testing::specs();
  Logger log;
  const Trainer trainer(
      tiny_run(folder.path()), {.specs = list, .log = log, .forecast = [](const auto&...) -> StepForecast {
                                  TORCH_CHECK(false, "no meta kernel");
                                }});
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(report, HasSubstr("cannot be predicted: no meta kernel\n"));
}

TEST(RecomputeChoice, IsTheUsualOneOnAllRanksIfOneDoesNotKnowItsMemory) {
  const Folder folder;
  const auto config =
      tiny_run(folder.path(), {{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "4"}});
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    Logger quiet("", true);
    const auto list = testing::specs();
    const Trainer trainer(
        config,
        {.specs = list,
         .log = quiet,
         .transport = &transport,
         .forecast = [](const TrainConfig& with, const auto&...) { return of_large_activations(with); },
         .memory = transport.rank() == 1 ? -1 : 4000});
    EXPECT_EQ(name_of(trainer.config()), "op 2");
  });
}

// Each rank has other memory, and only the main rank forecasts.
TEST(RecomputeChoice, IsThatOfTheRankWithTheLeastMemory) {
  for (const auto& [least, name] : {std::pair(1000, "none"), std::pair(450, "full")}) {
    const Folder folder;
    const auto config =
        tiny_run(folder.path(), {{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "4"}});
    std::mutex mutex;
    std::vector<std::string> names;
    int64_t forecasts = 0;
    mesh::run_ranks(2, [&, least = least](mesh::Transport& transport) {
      Logger quiet("", true);
      const auto list = testing::specs();
      Trainer trainer(
          config,
          {.specs = list,
           .log = quiet,
           .transport = &transport,
           .forecast =
               [&](const TrainConfig& with, const auto&, const auto&, int64_t world_size) {
                 const std::lock_guard lock(mutex);
                 forecasts += world_size == 2 ? 1 : 100;
                 return of_large_activations(with);
               },
           .memory = transport.rank() == 1 ? 2 * least : 4000});  // two ranks share the machine
      trainer.run();
      const std::lock_guard lock(mutex);
      names.push_back(name_of(trainer.config()));
    });
    EXPECT_EQ(names, std::vector<std::string>(2, name));
    EXPECT_EQ(forecasts, 5);
  }
}

}  // namespace
}  // namespace lehr::train
