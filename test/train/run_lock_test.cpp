// The lock of a run's folder, and its look from outside.
#include "lehr/train/run_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "lehr/base/error.h"
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
