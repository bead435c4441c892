#include "lehr/memory/granted_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "lehr/base/cgroups.h"
#include "lehr/base/error.h"

namespace lehr {

namespace {
using std::filesystem::path;

// Returns the number in the first line of a file; nothing if there is none, as in "max".
std::optional<int64_t> number_in(const path& file) {
  int64_t value = 0;
  std::ifstream stream(file);
  return stream >> value ? std::optional(value) : std::nullopt;
}

// Returns the number after `name` in a file of lines "name number".
std::optional<int64_t> number_of(const path& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t value = 0;
    if (words >> word >> value && word == name) {
      return value;
    }
  }
  return std::nullopt;
}

// The names of a version of cgroups.
struct Names {
  const char* limit;
  const char* used;
  const char* droppable;  // in memory.stat
};

// Returns what the limits of the groups leave. In version 1, a value above kNone stands for no limit.
std::optional<int64_t> left_by_cgroups(const path& root) {
  constexpr int64_t kNone = int64_t{1} << 60;
  std::optional<int64_t> least;
  for (const Cgroup& group : cgroups_of("memory", root)) {
    const Names names = group.is_version_2
                            ? Names{"memory.max", "memory.current", "inactive_file"}
                            : Names{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
    const auto limit = number_in(group.folder / names.limit);
    const auto used = number_in(group.folder / names.used);
    if (limit && used && *limit < kNone) {
      const int64_t cache = number_of(group.folder / "memory.stat", names.droppable).value_or(0);
      least = std::min(least.value_or(kNone), std::max<int64_t>(0, *limit - *used + cache));
    }
  }
  return least;
}

std::optional<int64_t> left_by_rlimit(const path& root) {
  rlimit limit{};
  const auto pages = number_in(root / "proc/self/statm");
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || !pages) {
    return std::nullopt;
  }
  constexpr int64_t kThreads = 256 << 20;  // addresses of stacks and heaps of threads that are still to start
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - *pages * ::sysconf(_SC_PAGESIZE) - kThreads);
}
}  // namespace

GrantedMemory granted_memory(const path& root) {
  std::optional<GrantedMemory> least;
  const auto consider = [&](std::optional<int64_t> bytes, const char* limit) {
    if (bytes && (!least || *bytes < least->bytes)) {
      least = GrantedMemory{*bytes, limit};
    }
  };
  const auto kilobytes = number_of(root / "proc/meminfo", "MemAvailable:");
  consider(kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt, "available memory");
  consider(left_by_cgroups(root), "memory limit of the cgroup");
  consider(left_by_rlimit(root), "ulimit -v");
  if (!least) {
    fail("memory: neither /proc/meminfo nor a limit tells how much this process may use");
  }
  return *least;
}

int64_t memory_kills(const path& root) {
  return number_of(root / "proc/vmstat", "oom_kill").value_or(0);
}

std::string memory_domain() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::error_code none;
  return text + std::filesystem::read_symlink("/proc/self/ns/cgroup", none).string() +
         std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
}

}  // namespace lehr
