#include "lehr/train/local_checkpoints.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/train/trainer.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::expect_same_bits;
using testing::flip_last_bit;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::tensors;
using ::testing::Throws;
using testing::tiny_run;
namespace fs = std::filesystem;

// A run with checkpoints in steps 5, 10 and 12, and a local one in every step.
TrainConfig local_run(const fs::path& folder, const Overrides& more = {}) {
  fs::create_directories(folder / "local");
  Overrides all{
      {"checkpoint.interval", "5"},
      {"checkpoint.local_interval", "1"},
      {"checkpoint.local_folder", "\"" + (folder / "local").string() + "\""}};
  return tiny_run(folder, testing::joined(all, more));
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

// The folder of the newest local checkpoint, of a run that died.
fs::path local_checkpoint(const fs::path& folder, int64_t step) {
  const auto starts = entries(folder / "local");
  EXPECT_THAT(starts, SizeIs(1));
  return starts.at(0) / ("step-" + std::to_string(step));
}

TEST(LocalCheckpoints, ARunThatDiedContinuesFromTheLastStepAndEndsWithTheBitsOfAnUndisturbedOne) {
  const Folder whole;
  const Folder parts;
  const auto once = tiny_run(whole.path(), {{"checkpoint.interval", "5"}});
  testing::train(once);
  const auto twice = local_run(parts.path());
  train_until(twice, 9);
  EXPECT_TRUE(fs::exists(local_checkpoint(parts.path(), 8)));
  EXPECT_EQ(train_until(twice, 11).first, 9) << "10 is on the disk, too";
  EXPECT_EQ(train_until(twice).first, 11);
  EXPECT_THAT(entries(parts.path() / "local"), IsEmpty()) << "the last step is on the disk";
  EXPECT_FALSE(fs::exists(fs::path(twice.job.dump_folder) / "checkpoints" / "local_checkpoints"));
  for (const char* stem : {"model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(once, 12), stem), tensors(checkpoint(twice, 12), stem));
  }
}

// A run of adapters continues in the same way.
TEST(LocalCheckpoints, HoldAdaptersToo) {
  const Folder base;
  const auto model = tiny_run(base.path(), {{"training.steps", "2"}});
  testing::train(model);
  const Overrides adapters{
      {"peft.method", "lora"}, {"checkpoint.initial_load_path", "\"" + checkpoint(model, 2).string() + "\""}};
  const Folder whole;
  const Folder parts;
  const auto once = tiny_run(whole.path(), adapters);
  testing::train(once);
  const auto twice = local_run(parts.path(), adapters);
  train_until(twice, 8);
  EXPECT_EQ(train_until(twice).first, 8);
  for (const char* stem : {"adapter_model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(once, 12), stem), tensors(checkpoint(twice, 12), stem));
  }
}

TEST(LocalCheckpoints, OnlyOneNewerThanThoseOfTheRunIsUsed) {
  const Folder folder;
  train_until(local_run(folder.path(), {{"checkpoint.local_interval", "3"}}), 6);  // 3 is local, 5 on the disk
  EXPECT_EQ(train_until(local_run(folder.path(), {{"checkpoint.local_interval", "3"}}), 7).first, 6);
}

// Other machines mount the folder of a run with another number of its file system.
TEST(LocalCheckpoints, AreFoundOnAnotherMountOfTheRunsFolder) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 7);
  const fs::path pointer = checkpoint(config, 0).parent_path() / "local_checkpoints";
  std::string text = read_file(pointer);
  const size_t line = text.find('\n');
  write_file_atomically(pointer, text.substr(0, line + 1) + "12345:" + text.substr(line + 1));  // as earlier versions
  EXPECT_GT(train_until(config, 8).first, 6);
}

TEST(LocalCheckpoints, OfABranchThatWasLeftBehindUnseenAreNotUsed) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 9);
  const fs::path there = local_checkpoint(folder.path(), 8).parent_path();
  fs::rename(there, there.string() + ".away");  // as on another machine
  testing::train(tiny_run(folder.path(), {{"checkpoint.load_step", "5"}}), /*stop_after=*/2);
  fs::rename(there.string() + ".away", there);
  EXPECT_EQ(train_until(config, 10).first, 8);
}

TEST(LocalCheckpoints, ADamagedOneIsNotUsed) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 9);
  flip_last_bit(local_checkpoint(folder.path(), 8) / "model.safetensors");
  const Trained trained = train_until(config, 7);
  EXPECT_EQ(trained.first, 6);
  EXPECT_THAT(trained.log, HasSubstr("model.safetensors"));
  EXPECT_THAT(trained.log, HasSubstr("that local checkpoint is not used"));
}

TEST(LocalCheckpoints, ReplaceADamagedCheckpointOfTheSameOrALaterStep) {
  for (const int64_t step : {10, 11}) {
    const Folder folder;
    const auto config = local_run(folder.path());
    train_until(config, 11);
    fs::remove_all(checkpoint(config, 5));
    if (step == 11) {
      fs::rename(checkpoint(config, 10), checkpoint(config, 11));
    }
    flip_last_bit(checkpoint(config, step) / "model.safetensors");
    const Trained trained = train_until(config, 12);
    EXPECT_EQ(trained.first, 11);
    EXPECT_THAT(trained.log, HasSubstr(".damaged, and the run resumes from step 10"));
  }
}

TEST(LocalCheckpoints, ANewRunInAnOldFolderDoesNotContinueFromThem) {
  for (const bool only_content : {false, true}) {
    const Folder folder;
    const auto config = local_run(folder.path());
    train_until(config, 4);
    const fs::path out = config.job.dump_folder;
    if (only_content) {
      for (const auto& entry : entries(out / "checkpoints")) {
        if (!entry.filename().string().starts_with('.')) {  // as rm -r checkpoints/* does
          fs::remove_all(entry);
        }
      }
    } else {
      fs::remove_all(out);
    }
    EXPECT_EQ(train_until(config, 2).first, 1);
  }
}

TEST(LocalCheckpoints, ARunThatGoesBackDropsThoseOfTheBranchThatItLeaves) {
  for (const char* interval : {"1", "0"}) {
    const Folder folder;
    train_until(local_run(folder.path()), 9);
    const Overrides back{{"checkpoint.load_step", "5"}, {"checkpoint.local_interval", interval}};
    EXPECT_EQ(train_until(local_run(folder.path(), back), 7).first, 6);
    EXPECT_THAT(entries(folder.path() / "local"), SizeIs(*interval - '0'));
    EXPECT_EQ(train_until(local_run(folder.path()), 8).first, *interval == '1' ? 7 : 6);
  }
}

TEST(LocalCheckpoints, AStartWithoutThemContinuesFromOneAndKeepsItUntilTheDiskHasItsState) {
  const Folder folder;
  const auto with = local_run(folder.path());
  const auto without = local_run(folder.path(), {{"checkpoint.local_interval", "0"}});
  train_until(with, 9);
  EXPECT_EQ(train_until(without, 9).first, 9);
  EXPECT_EQ(train_until(without).first, 9) << "the start before saved nothing";
  EXPECT_TRUE(fs::exists(checkpoint(without, 12)));
  EXPECT_THAT(entries(folder.path() / "local"), IsEmpty());
}

TEST(LocalCheckpoints, ACopyOfTheRunsFolderDoesNotTouchThem) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 9);
  const fs::path copy = folder.path() / "copy";
  fs::copy(config.job.dump_folder, copy, fs::copy_options::recursive);
  TrainConfig other = config;
  other.job.dump_folder = copy.string();
  EXPECT_EQ(train_until(other, 7).first, 6);
  EXPECT_EQ(train_until(config, 10).first, 9);
}

TEST(LocalCheckpoints, AreNotOverwrittenByARunWithoutCheckpoints) {
  const Folder folder;
  train_until(local_run(folder.path()), 4);  // nothing on the disk yet
  EXPECT_THAT(
      [&] {
        testing::train(local_run(folder.path(), {{"checkpoint.enable", "false"}, {"checkpoint.local_interval", "0"}}));
      },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("checkpoint.enable"))));
}

TEST(LocalCheckpoints, AWrongLoadStepKeepsThem) {
  const Folder folder;
  train_until(local_run(folder.path()), 9);
  EXPECT_THAT(
      [&] {
        testing::train(local_run(folder.path(), {{"checkpoint.load_step", "7"}}));
      },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("checkpoint.load_step"))));
  EXPECT_EQ(train_until(local_run(folder.path()), 10).first, 9);
}

TEST(LocalCheckpoints, ARunThatEndsWithoutAStepSavesTheirState) {
  for (const char* interval : {"1", "0"}) {
    const Folder folder;
    train_until(local_run(folder.path()), 9);
    const auto shorter = local_run(
        folder.path(),
        {{"training.steps", "8"},
         {"checkpoint.allow_changes", R"(["steps"])"},
         {"checkpoint.local_interval", interval}});
    train_until(shorter);
    EXPECT_TRUE(fs::exists(checkpoint(shorter, 8)));
    EXPECT_THAT(entries(folder.path() / "local"), IsEmpty());
  }
}

// As programs that clean up /dev/shm do.
TEST(LocalCheckpoints, ContinueWhenTheirFolderIsRemoved) {
  const Folder folder;
  const auto config = local_run(folder.path());
  Logger log("", true);
  const auto list = testing::specs();
  {
    Trainer trainer(config, {.specs = list, .log = log});
    // When gradients are ready, no save is running.
    trainer.events().subscribe(Event::gradients_ready, [&](const EventContext& context) {
      if (context.step == 4) {
        fs::remove_all(entries(folder.path() / "local").at(0));
      }
    });
    trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
      if (context.step == 9) {
        throw std::runtime_error("killed");
      }
    });
    EXPECT_THAT([&] { trainer.run(); }, ::testing::ThrowsMessage<std::runtime_error>("killed"));
  }
  const auto starts = entries(folder.path() / "local");
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(fs::status(starts[0]).permissions(), fs::perms::owner_all);
  EXPECT_EQ(train_until(config, 10).first, 9);
}

TEST(LocalCheckpoints, AnOpenFolderOfAnotherStartIsNotTrusted) {
  const Folder folder;
  const auto config = local_run(folder.path());
  train_until(config, 9);
  fs::permissions(entries(folder.path() / "local").at(0), fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(train_until(config, 7).first, 6);
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
  refused({{"checkpoint.local_folder", "\"local\""}}, "expected an absolute path");
  EXPECT_THAT(entries(folder.path() / "local"), IsEmpty());
}

TEST(LocalCheckpoints, WithoutRoomANewRunIsRefusedAndAResumedOneGoesOnWithout) {
  const Folder folder;
  CheckpointConfig config;
  config.local_interval = 1;
  config.local_folder = folder.path().string();
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  {
    LocalCheckpoints local(config, folder.path() / "run", std::make_shared<state::OneRank>());
    EXPECT_EQ(local.open(false, false, 1, 1), std::nullopt);
    EXPECT_TRUE(local.are_on());
  }
  {
    LocalCheckpoints local(config, folder.path() / "run", std::make_shared<state::OneRank>());
    EXPECT_THAT(
        [&] { local.open(false, false, kTooMuch, kTooMuch); },
        Throws<Error>(::testing::Property(&Error::what, HasSubstr("two local checkpoints take"))));
  }
  LocalCheckpoints local(config, folder.path() / "run", std::make_shared<state::OneRank>());
  EXPECT_THAT(local.open(true, false, kTooMuch, kTooMuch).value_or(""), HasSubstr("this start has no local"));
  EXPECT_FALSE(local.are_on());
}

}  // namespace
}  // namespace lehr::train
