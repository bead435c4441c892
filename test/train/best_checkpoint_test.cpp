// The checkpoint with the lowest validation loss is found, linked and kept, in one run and over several starts.
#include "lehr/train/best_checkpoint.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

namespace fs = std::filesystem;
using testing::checkpoint;
using testing::Folder;
using ::testing::HasSubstr;

// The validation loss after every second step. A run that is stopped during the validation has none.
using Losses = std::map<int64_t, double>;
constexpr double kStopped = -1;

TrainConfig best_run(const fs::path& folder, const Overrides& more = {}) {
  Overrides all{
      {"checkpoint.interval", "2"},
      {"checkpoint.keep_latest_k", "1"},
      {"checkpoint.keep_best", "true"},
      {"validation.freq", "2"}};
  all.insert(all.end(), more.begin(), more.end());
  return testing::tiny_run(folder, all);
}

// Trains with those losses, until `last` if it is set, and returns the log.
std::string train(const TrainConfig& config, const Losses& losses, int64_t last = 0) {
  int64_t step = 0;
  TrainSpec spec{.family = model::qwen3_dense_family()};
  spec.build.validate = [&](const auto&...) {
    const double loss = losses.at(step);
    return ValidationResult{.loss = loss, .valid = 1, .complete = loss != kStopped};
  };
  TrainSpecs list;
  list.add(spec);
  ::testing::internal::CaptureStderr();
  {
    Logger log;
    Trainer trainer(config, {.specs = list, .log = log, .stop_requested = [&] { return last > 0 && step >= last; }});
    const auto at = [&](const EventContext& context) { step = context.step; };
    trainer.events().subscribe(Event::ready, at);
    trainer.events().subscribe(Event::step_begin, at);
    trainer.run();
  }
  return ::testing::internal::GetCapturedStderr();
}

std::vector<int64_t> steps_of(const TrainConfig& config) {
  std::vector<int64_t> steps;
  for (const auto& one : state::CheckpointStore(checkpoint(config, 0).parent_path()).list()) {
    steps.push_back(one.step);
  }
  return steps;
}

fs::path link_of(const TrainConfig& config) {
  return checkpoint(config, 0).parent_path() / kBestLink;
}

TEST(BestCheckpoint, IsKeptAndLinkedBesidesTheLatest) {
  const Folder folder;
  const auto config = best_run(folder.path());
  const std::string log =
      train(config, {{2, 3}, {4, 1.5}, {6, 2}, {8, std::numeric_limits<double>::quiet_NaN()}, {10, 1.5}, {12, 4}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{4, 12})) << "of equal losses the earliest";
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-4");
  EXPECT_EQ(read_run_state(link_of(config)).validation_loss, 1.5);
  EXPECT_THAT(log, HasSubstr("best       " + checkpoint(config, 4).string() + ", validation_loss 1.5000"));
}

TEST(BestCheckpoint, IsTheLatestIfLossesFall) {
  const Folder folder;
  const auto config = best_run(folder.path(), {{"training.steps", "6"}});
  train(config, {{2, 3}, {4, 2}, {6, 1}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{6}));
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-6");
}

TEST(BestCheckpoint, OfEarlierStartsIsKnownAfterAResume) {
  const Folder folder;
  const auto config = best_run(folder.path());
  train(config, {{2, 2}, {4, 1}, {6, 3}}, 7);
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{4, 7})) << "that of a stop has no loss";
  EXPECT_FALSE(read_run_state(checkpoint(config, 7)).validation_loss);
  fs::remove(link_of(config));
  train(config, {{8, 2}, {10, 3}, {12, 1.5}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-4");
}

TEST(BestCheckpoint, HasTheLossOfAValidationThatAStopInterrupted) {
  const Folder folder;
  const auto config = best_run(folder.path(), {{"training.steps", "8"}});
  train(config, {{2, 2}, {4, kStopped}}, 4);
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-2");
  train(config, {{4, kStopped}}, 4);  // the repetition, too
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{2, 4})) << "no step was trained";
  train(config, {{4, 1}, {6, 3}, {8, 3}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-4");
}

TEST(BestCheckpoint, IsThatOfTheStepsSoFarIfARunGoesBack) {
  const Folder folder;
  train(
      best_run(folder.path(), {{"checkpoint.keep_latest_k", "0"}}), {{2, 3}, {4, 2}, {6, 1}, {8, 4}, {10, 5}, {12, 6}});
  const auto back = best_run(folder.path(), {{"checkpoint.load_step", "4"}, {"checkpoint.keep_latest_k", "0"}});
  EXPECT_EQ(fs::read_symlink(link_of(back)), "step-6");
  train(back, {{6, 7}}, 7);
  EXPECT_EQ(fs::read_symlink(link_of(back)), "step-4");
}

TEST(BestCheckpoint, IsLinkedAnewOnceADamagedOneIsSetAside) {
  const Folder folder;
  const auto config = best_run(folder.path(), {{"checkpoint.keep_latest_k", "2"}});
  train(config, {{2, 3}, {4, 2}, {6, 1}}, 6);
  fs::resize_file(checkpoint(config, 6) / "model.safetensors", 100);
  TrainSpecs list;
  list.add({.family = model::qwen3_dense_family()});
  ::testing::internal::CaptureStderr();
  Logger log;
  const Trainer trainer(config, {.specs = list, .log = log});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-6.damaged"));
  EXPECT_EQ(fs::read_symlink(link_of(config)), "step-4");
}

TEST(BestCheckpoint, LeavesAFileOfTheLinksName) {
  const Folder folder;
  const auto config = best_run(folder.path(), {{"training.steps", "4"}});
  fs::create_directories(link_of(config).parent_path());
  write_file_atomically(link_of(config), "step-2");
  train(config, {{2, 1}, {4, 2}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(read_file(link_of(config)), "step-2");
}

TEST(BestCheckpoint, IsNoLongerKeptWithoutTheKey) {
  const Folder folder;
  train(best_run(folder.path()), {{2, 1}, {4, 2}, {6, 3}}, 6);
  const auto config = best_run(folder.path(), {{"checkpoint.keep_best", "false"}});
  const std::string log = train(config, {{8, 2}, {10, 3}, {12, 1.5}});
  EXPECT_EQ(steps_of(config), (std::vector<int64_t>{12}));
  EXPECT_FALSE(fs::is_symlink(link_of(config)));
  EXPECT_FALSE(read_run_state(checkpoint(config, 12)).validation_loss);
  EXPECT_THAT(log, ::testing::Not(HasSubstr("best       ")));
}

TEST(BestCheckpoint, OfSeveralRanksIsThatOfTheLowestLossInTheLog) {
  const Folder folder;
  Overrides run = testing::family("qwen3");
  run.emplace_back("optimizer.lr", "0.3");  // so that the loss also rises
  run.emplace_back("training.steps", "12");
  run.insert(
      run.end(),
      {{"validation.enable", "true"},
       {"validation.freq", "2"},
       {"checkpoint.interval", "2"},
       {"checkpoint.keep_latest_k", "1"},
       {"checkpoint.keep_best", "true"}});
  const auto config = testing::tiny_run(folder.path(), run);
  const testing::Mesh mesh{.dp_shard = 2, .tp = 2};
  testing::train_on(mesh, config, /*stop_after=*/5);
  testing::train_on(mesh, config);
  const auto losses = testing::curve(config, "validation_loss");
  ASSERT_EQ(losses.size(), 6U);
  const auto best = 2 * (std::min_element(losses.begin(), losses.end()) - losses.begin() + 1);
  EXPECT_EQ(fs::read_symlink(link_of(config)), fmt::format("step-{}", best));
  EXPECT_EQ(steps_of(config), best == 12 ? std::vector<int64_t>{12} : (std::vector<int64_t>{best, 12}));
}

TEST(BestCheckpoint, NeedsAValidationForEachCheckpoint) {
  const Folder folder;
  const auto refused = [&](const Overrides& overrides, const char* message) {
    EXPECT_THAT(
        [&] { best_run(folder.path(), overrides); },
        ::testing::ThrowsMessage<Error>(HasSubstr(std::string("checkpoint.keep_best: ") + message)));
  };
  refused({{"validation.enable", "false"}}, "compares checkpoints by their validation loss: set validation.enable");
  refused({{"checkpoint.enable", "false"}}, "has no effect while checkpoint.enable is false");
  refused(
      {{"validation.freq", "4"}},
      "needs a validation after the step of each checkpoint: checkpoint.interval must be a multiple of validation.freq "
      "(4), found 2");
  EXPECT_TRUE(best_run(folder.path(), {{"validation.freq", "1"}}).checkpoint.keep_best);
}

}  // namespace
}  // namespace lehr::train
