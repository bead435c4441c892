#include "lehr/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace lehr {

namespace {
namespace fs = std::filesystem;

// The cores that the quota of one cgroup grants, if it has one: version 2 writes "quota period" or "max period" into
// one file, version 1 has a file for each.
std::optional<double> quota_in(const fs::path& group) {
  double quota = 0;
  double period = 0;
  if (std::ifstream both(group / "cpu.max"); both) {
    both >> quota >> period;  // "max" is not a number
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

// The least of a group and its parents.
std::optional<double> least_quota(const fs::path& top, fs::path group) {
  std::optional<double> least;
  for (;; group = group.parent_path()) {
    if (const auto quota = quota_in(top / group)) {
      least = std::min(least.value_or(*quota), *quota);
    }
    if (group.empty() || group == group.parent_path()) {
      return least;
    }
  }
}
}  // namespace

std::optional<double> granted_cores(const fs::path& root) {
  std::optional<double> least = least_quota(root / "sys/fs/cgroup", {});
  const auto consider = [&](const std::optional<double>& quota) {
    least = quota ? std::min(least.value_or(*quota), *quota) : least;
  };
  consider(least_quota(root / "sys/fs/cgroup/cpu", {}));
  // A line of /proc/self/cgroup is "number:controllers:/group"; version 2 has no controllers.
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") {
      consider(least_quota(root / "sys/fs/cgroup", group));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      consider(least_quota(root / "sys/fs/cgroup/cpu", group));
    }
  }
  return least;
}

double usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  const double allowed = known ? CPU_COUNT(&mask) : std::max(std::thread::hardware_concurrency(), 1U);
  return std::min(allowed, granted_cores().value_or(allowed));
}

}  // namespace lehr
