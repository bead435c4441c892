// The cores that quotas of cgroups grant.
#include "lehr/base/usable_cores.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "test/base/temporary_folder.h"

namespace lehr {
namespace {

namespace fs = std::filesystem;

class Quotas : public ::testing::Test {
 protected:
  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  const TemporaryFolder folder_;
  const fs::path& root_ = folder_.path();
};

TEST_F(Quotas, OfVersionTwoCountInTheGroupAndItsParents) {
  write("proc/self/cgroup", "0::/user.slice/run.scope\n");
  EXPECT_EQ(granted_cores(root_), std::nullopt);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(granted_cores(root_), std::nullopt);
  write("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(granted_cores(root_), 1.5);
  write("sys/fs/cgroup/user.slice/run.scope/cpu.max", "50000 100000\n");
  EXPECT_EQ(granted_cores(root_), 0.5);
}

TEST_F(Quotas, OfVersionOneCountInTheGroupAndItsParents) {
  write("proc/self/cgroup", "5:memory:/other\n3:cpu,cpuacct:/job\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(granted_cores(root_), std::nullopt);
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(granted_cores(root_), 1.0);
}

// A container sees its own group as the root of the file system, and may not see its name.
TEST_F(Quotas, OfAContainerAreThoseOfTheRoot) {
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(granted_cores(root_), 2.0);
}

}  // namespace
}  // namespace lehr
