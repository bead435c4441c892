// The memory granted to a process, from files as the system writes them.
#include "lehr/memory/granted_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "lehr/base/error.h"
#include "test/base/temporary_folder.h"

namespace lehr {
namespace {

class GrantedMemoryTest : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  const TemporaryFolder folder_;
  const std::filesystem::path& root_ = folder_.path();
};

constexpr const char* kMemInfo = "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:    4000 kB\n";

TEST_F(GrantedMemoryTest, IsWhatIsAvailableWithoutLimits) {
  put("proc/meminfo", kMemInfo);
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  put("sys/fs/cgroup/memory.current", "5000\n");
  const GrantedMemory granted = granted_memory(root_);
  EXPECT_EQ(granted.bytes, 4000 * 1024);
  EXPECT_EQ(granted.limit, "available memory");
}

TEST_F(GrantedMemoryTest, IsWhatTheTightestCgroupLeaves) {
  put("proc/meminfo", kMemInfo);
  put("proc/self/cgroup", "0::/outer/inner\n");
  put("sys/fs/cgroup/outer/memory.max", "1000000\n");
  put("sys/fs/cgroup/outer/memory.current", "700000\n");
  put("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 50000\n");
  put("sys/fs/cgroup/outer/inner/memory.max", "2000000\n");
  put("sys/fs/cgroup/outer/inner/memory.current", "600000\n");
  const GrantedMemory granted = granted_memory(root_);
  EXPECT_EQ(granted.bytes, 1000000 - 700000 + 50000) << "page cache can be dropped";
  EXPECT_EQ(granted.limit, "memory limit of the cgroup");
}

TEST_F(GrantedMemoryTest, ReadsVersion1OfCgroups) {
  put("proc/meminfo", kMemInfo);
  put("proc/self/cgroup", "3:cpu:/job\n5:hugetlb,memory:/job\n0::/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "800000\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "600000\n");
  put("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 30000\n");
  EXPECT_EQ(granted_memory(root_).bytes, 230000);
}

TEST_F(GrantedMemoryTest, IsNothingBeyondALimitThatIsUsedUp) {
  put("proc/meminfo", kMemInfo);
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "1000\n");
  put("sys/fs/cgroup/memory.current", "1100\n");
  EXPECT_EQ(granted_memory(root_).bytes, 0);
}

TEST_F(GrantedMemoryTest, IsWhatTheAddressSpaceLeaves) {
  put("proc/meminfo", kMemInfo);
  put("proc/self/statm", "2 1 1 1 0 1 0\n");  // pages; the first number counts
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  // Far above what this process has, and above what is available in this system's own files.
  rlimit limited = before;
  limited.rlim_cur = rlim_t{1} << 46;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  put("proc/meminfo", "MemAvailable: 90000000000000 kB\n");
  const GrantedMemory granted = granted_memory(root_);
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(granted.bytes, (int64_t{1} << 46) - 2 * ::sysconf(_SC_PAGESIZE) - (256 << 20));
  EXPECT_EQ(granted.limit, "ulimit -v");
}

TEST_F(GrantedMemoryTest, ThrowsIfNothingIsKnown) {
  EXPECT_THROW(granted_memory(root_), Error);
}

TEST(GrantedMemory, IsKnownOnThisMachine) {
  EXPECT_GT(granted_memory().bytes, 0);
  EXPECT_EQ(memory_domain(), memory_domain());
}

TEST_F(GrantedMemoryTest, CountsTheProcessesThatTheKernelHasKilled) {
  EXPECT_EQ(memory_kills(root_), 0) << "kernels before 4.13 do not count them";
  put("proc/vmstat", "nr_free_pages 9\noom_kill 3\noom_kill_other 7\n");
  EXPECT_EQ(memory_kills(root_), 3);
}

}  // namespace
}  // namespace lehr
