// Asynchronous saves beside training: copies, order, and full disks.
#include "lehr/state/async_checkpointer.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/state/checkpoint_support.h"

namespace lehr::state {
namespace {

using testing::bit_equal;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hidden_entries;
using testing::holds;
using ::testing::IsEmpty;
using testing::make_contents;
using testing::steps_of;
using testing::TemporaryFolder;

TEST(AsyncCheckpointer, SavesTheTensorsAsTheyWereWhenSaveWasCalled) {
  const TemporaryFolder folder;
  AsyncCheckpointer checkpointer((CheckpointStore(folder.path())));
  // Large enough for training to overtake the thread if it read the tensors themselves.
  const at::Tensor weight = at::zeros({2'000'000});
  for (int64_t step = 1; step <= 4; ++step) {
    weight.fill_(static_cast<double>(step));
    checkpointer.save({.step = step, .weights = {{.tensors = {{"w", weight}}}}});
    weight.fill_(-1);
  }
  checkpointer.wait();
  for (int64_t step = 1; step <= 4; ++step) {
    const auto result = checkpointer.poll();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->step, step);
    EXPECT_EQ(result->error, "");
    EXPECT_EQ(result->num_bytes, 8'000'000);
    const at::Tensor saved = WeightReader(result->path).tensor("w");
    EXPECT_TRUE(saved.eq(static_cast<double>(step)).all().item<bool>()) << step;
  }
  EXPECT_FALSE(checkpointer.poll().has_value());
}

TEST(AsyncCheckpointer, SavesAllPartsBitForBitAndKeepsTheLatest) {
  const TemporaryFolder folder;
  AsyncCheckpointer checkpointer(CheckpointStore(folder.path()), 2);
  for (int64_t step : {10, 20, 30}) {
    checkpointer.save(make_contents(step, step));
  }
  checkpointer.wait();
  EXPECT_THAT(steps_of(checkpointer.store()), ElementsAre(20, 30));
  EXPECT_TRUE(holds(folder.path() / "step-30", make_contents(30, 30)));
}

TEST(AsyncCheckpointer, ConvertsToTheTypeOfTheFile) {
  const TemporaryFolder folder;
  AsyncCheckpointer checkpointer((CheckpointStore(folder.path())));
  const at::Tensor weight = at::randn({5, 7}).t();
  const at::Tensor count = at::full({}, 3, at::kLong);
  // Twice: with new buffers, and with the buffers of the first save.
  for (int64_t step : {1, 2}) {
    checkpointer.save({.step = step, .weights = {{.tensors = {{"w", weight}, {"n", count}}, .dtype = at::kBFloat16}}});
    checkpointer.wait();
    const WeightReader reader(folder.path() / fmt::format("step-{}", step));
    EXPECT_TRUE(bit_equal(reader.tensor("w"), weight.to(at::kBFloat16)));
    EXPECT_TRUE(bit_equal(reader.tensor("n"), count));
  }
}

TEST(AsyncCheckpointer, AcceptsOtherTensorsUnderTheSameNames) {
  const TemporaryFolder folder;
  AsyncCheckpointer checkpointer((CheckpointStore(folder.path())));
  const std::vector<at::Tensor> weights = {
      at::randn({3}), at::randn({4}), at::randn({4}, at::kDouble), at::randn({2, 2})};
  for (size_t i = 0; i < weights.size(); ++i) {
    checkpointer.save({.step = static_cast<int64_t>(i), .weights = {{.tensors = {{"w", weights[i]}}}}});
  }
  checkpointer.wait();
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(bit_equal(WeightReader(folder.path() / fmt::format("step-{}", i)).tensor("w"), weights[i])) << i;
  }
}

TEST(AsyncCheckpointer, ThrowsImmediatelyForInvalidContents) {
  const TemporaryFolder folder;
  AsyncCheckpointer checkpointer((CheckpointStore(folder.path())));
  EXPECT_THAT(
      error_of([&] {
        checkpointer.save({.step = 1, .weights = {}, .texts = {{"../x", ""}}});
      }),
      HasSubstr("../x"));
  EXPECT_FALSE(checkpointer.poll().has_value());
}

TEST(AsyncCheckpointer, ItsDestructorWaitsForTheSaveInProgress) {
  const TemporaryFolder folder;
  AsyncCheckpointer(CheckpointStore(folder.path())).save(make_contents(3, 3));
  EXPECT_TRUE(holds(folder.path() / "step-3", make_contents(3, 3)));
}

// Runs a save that the disk refuses, and checks that the earlier checkpoint is kept, nothing is left behind, and the
// next save that fits succeeds. Returns the error message.
std::string fail_in_the_middle(const fs::path& root) {
  AsyncCheckpointer checkpointer((CheckpointStore(root)));
  checkpointer.save(make_contents(1, 1));
  checkpointer.wait();
  EXPECT_EQ(checkpointer.poll()->error, "");
  CheckpointContents large = make_contents(2, 2);
  // 256 KB in so few elements that ATen starts no threads, which it could not do in a forked process.
  large.weights[1].tensors.emplace_back("large", at::ones({32'000}, at::kDouble));
  checkpointer.save(large);
  checkpointer.wait();
  const SaveResult result = checkpointer.poll().value();
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.step, 2);
  EXPECT_THAT(steps_of(checkpointer.store()), ElementsAre(1));
  EXPECT_TRUE(holds(root / "step-1", make_contents(1, 1)));
  EXPECT_THAT(hidden_entries(root), IsEmpty());
  checkpointer.save(make_contents(3, 3));
  checkpointer.wait();
  EXPECT_EQ(checkpointer.poll()->error, "");
  EXPECT_TRUE(holds(root / "step-3", make_contents(3, 3)));
  return result.error;
}

TEST(AsyncCheckpointer, ReportsAFileOverTheLimitOfTheProcessAndContinues) {
  const TemporaryFolder folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit low = before;
  low.rlim_cur = 64 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string message = fail_in_the_middle(folder.path());
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, HasSubstr("step-2.saving/optimizer.safetensors: cannot be written"));
  EXPECT_THAT(message, HasSubstr("65536 bytes"));
  EXPECT_THAT(message, HasSubstr("ulimit -f"));
}

TEST(AsyncCheckpointer, ReportsAFullDiskWithTheBytesNeededAndFreeAndContinues) {
  const TemporaryFolder folder;
  const std::string report = folder.path() / "report";
  const fs::path disk = folder.path() / "disk";
  fs::create_directory(disk);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    // A disk of 256 KiB that only this process sees.
    if ((::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("lehr", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
      ::_exit(77);
    }
    testing::write_bytes(report, fail_in_the_middle(disk / "checkpoints"));
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "a disk of its own cannot be mounted here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const std::string message = read_file(report);
  EXPECT_THAT(
      message, HasSubstr("step-2.saving/optimizer.safetensors: cannot be written: No space left on device: 25"));
  EXPECT_THAT(
      message, ::testing::ContainsRegex("25[0-9]+ bytes \\(.* KiB\\) needed, 2[0-9]+ bytes .* free; free some space"));
}

}  // namespace
}  // namespace lehr::state
