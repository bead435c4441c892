#include "lehr/train/local_checkpoints.h"

#include <gmock/gmock.h>

#include <fstream>

#include "lehr/base/error.h"
#include "lehr/train/trainer.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::expect_same_bits;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::tensors;
using ::testing::Throws;
using testing::tiny_run;
namespace fs = std::filesystem;

using Overrides = std::vector<std::pair<std::string, std::string>>;

// A run with checkpoints in steps 5, 10 and 12, and a local one in every step.
TrainConfig local_run(const fs::path& folder, const Overrides& more = {}) {
  fs::create_directories(folder / "local");
  Overrides all{
      {"checkpoint.interval", "5"},
      {"checkpoint.local_interval", "1"},
      {"checkpoint.local_folder", "\"" + (folder / "local").string() + "\""}};
  all.insert(all.end(), more.begin(), more.end());
  return tiny_run(folder, all);
}

// Steps that were trained, and warnings.
struct Trained {
  int64_t first = 0;
  std::string log;
};

// Trains; the process seems to die as step `dies_in` begins.
Trained train_until(const TrainConfig& config, int64_t dies_in = 0) {
  ::testing::internal::CaptureStderr();
  Logger log;
  const auto list = testing::specs();
  Trained trained;
  {
    Trainer trainer(config, {.specs = list, .log = log});
    trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
      trained.first = trained.first == 0 ? context.step : trained.first;
      if (context.step == dies_in) {
        throw std::runtime_error("killed");
      }
    });
    try {
      trainer.run();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "killed");
    }
  }
  trained.log = ::testing::internal::GetCapturedStderr();
  return trained;
}

std::vector<fs::path> entries(const fs::path& folder) {
  return {fs::directory_iterator(folder), fs::directory_iterator()};
}

// The only local checkpoint of the only run in the folder.
fs::path local_checkpoint(const fs::path& folder, int64_t step) {
  const auto runs = entries(folder / "local");
  EXPECT_THAT(runs, SizeIs(1));
  return runs.at(0) / ("step-" + std::to_string(step));
}

TEST(LocalCheckpoints, ARunThatDiedRepeatsNoStepAndEndsWithTheBitsOfAnUndisturbedOne) {
  const Folder whole;
  const Folder parts;
  const auto once = tiny_run(whole.path(), {{"checkpoint.interval", "5"}});
  testing::train(once);
  const auto twice = local_run(parts.path());
  train_until(twice, 9);
  EXPECT_TRUE(fs::exists(local_checkpoint(parts.path(), 8)));
  EXPECT_EQ(train_until(twice).first, 9);
  EXPECT_THAT(entries(parts.path() / "local"), IsEmpty()) << "the last step is on the disk";
  for (const char* stem : {"model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(once, 12), stem), tensors(checkpoint(twice, 12), stem));
  }
}

TEST(LocalCheckpoints, OnlyThoseNewerThanTheDisksAreUsed) {
  const Folder folder;
  train_until(local_run(folder.path(), {{"checkpoint.local_interval", "3"}}), 6);  // 3 local, 5 on the disk
  const Trained trained = train_until(local_run(folder.path(), {{"checkpoint.local_interval", "3"}}), 7);
  EXPECT_EQ(trained.first, 6);
}

TEST(LocalCheckpoints, ADamagedOneIsRemovedAndTheDisksUsed) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 9);
  const fs::path file = local_checkpoint(folder.path(), 8) / "model.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('\x55');
  const Trained trained = train_until(config, 7);
  EXPECT_EQ(trained.first, 6);
  EXPECT_THAT(trained.log, HasSubstr("model.safetensors"));
  EXPECT_THAT(trained.log, HasSubstr("that local checkpoint is removed"));
}

TEST(LocalCheckpoints, ANewRunInAnOldPathDoesNotContinueFromThem) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 4);
  fs::remove_all(config.job.dump_folder);
  EXPECT_EQ(train_until(config, 2).first, 1);
}

TEST(LocalCheckpoints, ARunThatGoesBackToAStepDropsThem) {
  const Folder folder;
  train_until(local_run(folder.path()), 9);
  EXPECT_EQ(train_until(local_run(folder.path(), {{"checkpoint.load_step", "5"}}), 7).first, 6);
}

TEST(LocalCheckpoints, AFolderThatOthersCanReadIsRefused) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 3);
  fs::permissions(entries(folder.path() / "local").at(0), fs::perms::others_read, fs::perm_options::add);
  EXPECT_THAT(
      [&] { testing::train(config); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("not a folder that only this user can read"))));
}

TEST(LocalCheckpoints, AreRefusedWithoutAFolderOrWithoutEffect) {
  const Folder folder;
  const auto refused = [&](const Overrides& overrides, const char* says) {
    EXPECT_THAT(
        [&] { testing::train(local_run(folder.path(), overrides)); },
        Throws<Error>(::testing::Property(&Error::what, HasSubstr(says))));
  };
  refused({{"checkpoint.local_interval", "5"}}, "checkpoint.local_interval");
  refused({{"checkpoint.enable", "false"}}, "checkpoint.local_interval");
  refused({{"checkpoint.local_folder", "\"/nowhere\""}}, "checkpoint.local_folder: /nowhere/");
}

TEST(LocalCheckpoints, AreRefusedWithoutRoom) {
  const Folder folder;
  const auto coordinator = std::make_shared<state::OneRank>();
  CheckpointConfig config;
  config.local_interval = 1;
  config.local_folder = folder.path().string();
  LocalCheckpoints local(config, folder.path() / "run", coordinator);
  local.require_space(1);
  EXPECT_THAT(
      [&] { local.require_space(int64_t{1} << 60); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("two local checkpoints take"))));
}

}  // namespace
}  // namespace lehr::train
