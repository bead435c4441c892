// Mapping of whole pages, and moving them between addresses without copying or zeroing.
#pragma once

#include <cstddef>
#include <vector>

namespace lehr {

/// Size and alignment of huge pages, where the system supports them.
constexpr size_t kHugePage = size_t{2} << 20;

/// Maps `size` bytes of fresh memory, a whole number of pages, to be freed by munmap(address, size). Returns null if
/// there is none. From 2 MiB on, it uses huge pages where the system supports them: there are far fewer page faults,
/// and direct I/O requests megabytes at once instead of lists of a few hundred small pages.
void* map_pages(size_t size);

/// A range of whole pages. `parts` are the sizes in bytes, in address order, of the mappings that the system sees: it
/// does not move a range across the border of two mappings.
struct Pages {
  std::byte* begin = nullptr;
  size_t size = 0;
  std::vector<size_t> parts = {};
};

/// Unmaps the last `bytes` of `pages`, rounded up so that whole huge pages remain, or nothing.
void unmap_last(Pages& pages, size_t bytes);

/// Moves the last `bytes` of `from`, whole pages, to `to`, where mapped pages have not been touched yet. Huge pages
/// stay huge if all three are multiples of kHugePage. Returns the parts that are now at `to`, which are less than
/// `bytes` if the system refuses; `from` keeps the rest. Throws a runtime error if the system has no memory left to
/// undo such a refusal; the pages to be moved are lost then.
std::vector<size_t> move_last(Pages& from, std::byte* to, size_t bytes);

/// Fresh pages that are replaced by pages of other blocks, huge pages by huge pages.
class PagesToFill {
 public:
  /// `pages` must be untouched, and begin on a huge-page border if they are at least that large.
  explicit PagesToFill(Pages& pages);

  /// Bytes that were moved so far.
  size_t bytes() const { return huge_.filled + small_.filled; }
  bool can_use(const Pages& from) const;
  /// Moves pages of `from` until bytes() is `most` or slightly more. `from` keeps the rest, except pages after its last
  /// huge page, which it may lose. Returns false if the system refused.
  bool take(Pages& from, size_t most);
  /// Sets the parts of `pages`. Returns the number of bytes that stayed fresh.
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
  Range small_;  // after the last huge page
};

}  // namespace lehr
