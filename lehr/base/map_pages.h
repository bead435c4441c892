// Whole pages of memory from the system.
#pragma once

#include <cstddef>

namespace lehr {

/// Fresh memory of `size` bytes, which are whole pages, to be given back by munmap(address, size); null if there is
/// none. From 2 MB on it lies on huge pages where the system has them: a fraction of the page faults, and a disk that
/// reads or writes it directly is asked for megabytes at once, where small pages go in lists that are a few hundred
/// long.
void* map_pages(size_t size);

}  // namespace lehr
