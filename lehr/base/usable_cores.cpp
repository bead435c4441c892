#include "lehr/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>

namespace lehr {

namespace {
// Returns the cores that a cgroup's quota grants, if there is one: version 2 writes "quota period" or "max period" into
// one file, version 1 has a file for each.
std::optional<double> granted_cores() {
  double quota = 0;
  double period = 0;
  if (std::ifstream both("/sys/fs/cgroup/cpu.max"); both) {
    both >> quota >> period;  // "max" is not a number
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}
}  // namespace

double usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  const double allowed = known ? CPU_COUNT(&mask) : std::max(std::thread::hardware_concurrency(), 1U);
  return std::min(allowed, granted_cores().value_or(allowed));
}

}  // namespace lehr
