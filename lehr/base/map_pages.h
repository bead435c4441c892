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

/// Gives the last `bytes` of `pages` to the system, rounded up so that whole huge pages are left, or nothing.
void unmap_last(Pages& pages, size_t bytes);

/// Moves the last `bytes` of `from`, whole pages, to `to`, where pages are mapped that nobody has touched; huge pages
/// stay what they are if all three are multiples of kHugePage. Returns the parts that are at `to` now, less than
/// `bytes` where the system refuses; `from` is what is left. Throws a runtime error if the system has no memory left to
/// undo such a refusal; what was to move is lost then.
std::vector<size_t> move_last(Pages& from, std::byte* to, size_t bytes);

/// Fresh pages that are filled with those of other blocks, huge ones with huge ones.
class PagesToFill {
 public:
  /// Nobody has touched `pages`, which begin on a huge page if they are as large as one.
  explicit PagesToFill(Pages& pages);

  /// Of those that were moved.
  size_t bytes() const { return huge_.filled + small_.filled; }
  bool can_use(const Pages& from) const;
  /// Moves pages of `from` until bytes() is `most` or a little more; `from` is what is left, and may have lost what lay
  /// behind its last huge page. False if the system refused.
  bool take(Pages& from, size_t most);
  /// Says the parts of `pages`. Returns the bytes that stayed fresh.
  size_t finish();

 private:
  struct Range {
    std::byte* begin = nullptr;
    size_t size = 0;
    size_t filled = 0;
    std::vector<size_t> parts = {};
    size_t left() const { return size - filled; }
    bool take(Pages& from, size_t bytes);
  };
  Pages& pages_;
  Range huge_;
  Range small_;  // behind the last huge page
};

}  // namespace lehr
