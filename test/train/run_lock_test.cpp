// The lock of a run's folder, and its look from outside.
#include "lehr/train/run_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "lehr/base/error.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

TEST(RunLock, IsSeenWhileARunHoldsIt) {
  const testing::Folder folder;
  EXPECT_EQ(is_locked(folder.path()), std::nullopt);
  EXPECT_EQ(is_locked(folder.path() / "none"), std::nullopt);
  {
    const RunLock lock(folder.path());
    EXPECT_EQ(is_locked(folder.path()), true);
    EXPECT_THROW(RunLock(folder.path()), Error);
  }
  EXPECT_EQ(is_locked(folder.path()), false);
}

TEST(RunLock, NamesAFolderThatCannotBeMeant) {
  const testing::Folder folder;
  const auto problem = [](const std::filesystem::path& path) { return any_error::error_of([&] { RunLock{path}; }); };
  EXPECT_THAT(problem(""), ::testing::HasSubstr("expected a folder, found an empty text"));
  EXPECT_THAT(
      problem("~/run"), ::testing::HasSubstr("job.dump_folder: ~/run: the home folder is not written as ~ here"));
  EXPECT_FALSE(std::filesystem::exists("~"));
  std::filesystem::create_symlink("gone", folder.path() / "link");
  EXPECT_THAT(
      problem(folder.path() / "link"), ::testing::HasSubstr("link is a symbolic link to gone, which is not a folder"));
}

// is_locked holds the lock for a moment; a run that starts in it must not be refused.
TEST(RunLock, IsTakenAfterAnother) {
  const testing::Folder folder;
  std::ofstream(folder.path() / ".lock") << "";
  const int file = ::open((folder.path() / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(file, LOCK_SH | LOCK_NB), 0);
  std::thread reader([file] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ::close(file);
  });
  EXPECT_NO_THROW(RunLock(folder.path()));
  reader.join();
}

}  // namespace
}  // namespace lehr::train
