// Whole pages of memory from the system, and how they move between addresses without being copied or zeroed.
#pragma once

#include <cstddef>
#include <vector>

namespace lehr {

/// Pages become huge pages in pieces of this size, where the system has them.
constexpr size_t kHugePage = size_t{2} << 20;

/// Fresh memory of `size` bytes, which are whole pages, to be given back by munmap(address, size); null if there is
/// none. From 2 MB on it lies on huge pages where the system has them: a fraction of the page faults, and a disk that
/// reads or writes it directly is asked for megabytes at once, where small pages go in lists that are a few hundred
/// long.
void* map_pages(size_t size);

/// A range of whole pages. Its parts, in bytes and in the order of addresses, are what the system knows as one mapping
/// each: it moves no range over the border of two.
struct Pages {
  std::byte* begin = nullptr;
  size_t size = 0;
  std::vector<size_t> parts = {};
};

/// Moves the last huge pages of `from`, `most` bytes of them at most, to `to`, where pages are mapped that nobody has
/// touched; both addresses and `most` are multiples of kHugePage. What lies behind the last whole huge page of `from`
/// goes to the system. Returns the parts that are at `to` now, fewer than could be where the system refuses; `from` is
/// what is left. Throws a runtime error if the system has no memory left to undo such a refusal.
std::vector<size_t> move_pages(Pages& from, std::byte* to, size_t most);

}  // namespace lehr
