#include "lehr/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "lehr/base/cgroups.h"

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

}  // namespace

std::optional<double> granted_cores(const fs::path& root) {
  std::vector<Cgroup> groups = cgroups_of("cpu", root);
  for (const char* top : {"sys/fs/cgroup", "sys/fs/cgroup/cpu"}) {  // a container may not see the names of its groups
    groups.push_back({.folder = root / top});
  }
  std::optional<double> least;
  for (const Cgroup& group : groups) {
    if (const auto quota = quota_in(group.folder)) {
      least = std::min(least.value_or(*quota), *quota);
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
