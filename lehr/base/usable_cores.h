// The number of cores that this process may use.
#pragma once

#include <filesystem>
#include <optional>

namespace lehr {

/// Returns the cores that the least quota of this process's cgroups and their parents grants; none without a quota.
/// `root` is "/", except in tests.
std::optional<double> granted_cores(const std::filesystem::path& root = "/");

/// Returns the number of CPU cores that this process may use: those of its affinity mask, or fewer if a cgroup grants
/// less time (a container with a quota of 1.5 cores: 1.5).
double usable_cores();

}  // namespace lehr
