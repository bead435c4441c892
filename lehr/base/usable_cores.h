// The number of cores that this process may use.
#pragma once

namespace lehr {

/// Returns the number of CPU cores that this process may use: those of its affinity mask, or fewer if a cgroup grants
/// less time (a container with a quota of 1.5 cores: 1.5).
double usable_cores();

}  // namespace lehr
