// Memory that the system grants this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lehr {

/// Bytes that this process can still allocate, and the limit that bounds them.
struct GrantedMemory {
  int64_t bytes = 0;
  std::string limit;  ///< "available memory", "memory limit of the cgroup" or "ulimit -v".
};

/// Returns the least of: MemAvailable of /proc/meminfo; the rest of the limits of this process's cgroup (version 1 or
/// 2) and of its parents, where page cache that can be dropped counts as free; and the rest of RLIMIT_AS without the
/// stacks of threads. Throws a usage error if the system reports none of them. Files are read below `root`.
GrantedMemory granted_memory(const std::filesystem::path& root = "/");

/// Returns the number of processes that the kernel has killed for lack of memory since the machine started, also
/// because of the limit of any cgroup; 0 if the kernel does not say. Read below `root`.
int64_t memory_kills(const std::filesystem::path& root = "/");

/// Returns a text that is equal for processes with the same memory and limits: those of one machine and container.
std::string memory_domain();

}  // namespace lehr
