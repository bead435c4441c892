// What is asked of the system about memory: whole pages, and how much is left.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lehr {

/// Fresh memory of `size` bytes, which are whole pages, to be given back by munmap(address, size); null if there is
/// none. From 2 MB on it lies on huge pages where the system has them: a fraction of the page faults, and a disk that
/// reads or writes it directly is asked for megabytes at once, where small pages go in lists that are a few hundred
/// long.
void* map_pages(size_t size);

/// Bytes that programs can still take before others are driven out (MemAvailable of /proc/meminfo); 0 if unknown.
int64_t available_memory();

}  // namespace lehr
