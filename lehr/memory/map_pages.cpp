#include "lehr/memory/map_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lehr/base/error.h"

namespace lehr {

void* map_pages(size_t size) {
  const size_t more = size >= kHugePage ? kHugePage : 0;
  void* const begin = mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED || more == 0) {
    return begin == MAP_FAILED ? nullptr : begin;
  }
  auto* const first = static_cast<std::byte*>(begin);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) {
    munmap(first, before);
  }
  if (more > before) {
    munmap(first + before + size, more - before);
  }
  madvise(first + before, size, MADV_HUGEPAGE);  // a hint
  return first + before;
}

namespace {
// mremap unmaps the target of a move before it has checked all reasons to refuse the move.
void close_hole(std::byte* at, size_t size) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  void* const pages = mmap(at, size, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (pages == at) {
    madvise(at, size, MADV_HUGEPAGE);
  } else if (pages != MAP_FAILED) {  // a system without MAP_FIXED_NOREPLACE: there was no hole
    munmap(pages, size);
  } else if (errno != EEXIST) {
    // EEXIST means that there is no hole: nobody else maps memory in the moment after the refusal.
    fail_runtime("memory: {} MiB were lost while the system moved them: {}", size >> 20, std::strerror(errno));
  }
}

// Subtracts the last `bytes`, which were moved or lost, from the sizes; they are in the last part.
void drop_last(Pages& pages, size_t bytes) {
  pages.size -= bytes;
  pages.parts.back() -= bytes;
  if (pages.parts.back() == 0) {
    pages.parts.pop_back();
  }
}
}  // namespace

void unmap_last(Pages& pages, size_t bytes) {
  const size_t left = pages.size > bytes ? (pages.size - bytes) / kHugePage * kHugePage : 0;
  if (pages.size > left && munmap(pages.begin + left, pages.size - left) != 0) {
    madvise(pages.begin + left, pages.size - left, MADV_DONTNEED);  // loses the addresses, but frees the pages
  }
  while (pages.size > left) {
    drop_last(pages, std::min(pages.size - left, pages.parts.back()));
  }
}

std::vector<size_t> move_last(Pages& from, std::byte* to, size_t bytes) {
  std::vector<size_t> moved;
  while (bytes > 0 && from.size > 0) {
    const size_t part = std::min(bytes, from.parts.back());
    if (mremap(from.begin + from.size - part, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
      close_hole(to, part);
      break;
    }
    drop_last(from, part);
    moved.push_back(part);
    to += part;
    bytes -= part;
  }
  return moved;
}

PagesToFill::PagesToFill(Pages& pages) : pages_(pages) {
  huge_ = {.begin = pages.begin, .size = pages.size / kHugePage * kHugePage};
  small_ = {.begin = pages.begin + huge_.size, .size = pages.size - huge_.size};
}

bool PagesToFill::can_use(const Pages& from) const {
  return (huge_.left() > 0 && from.size >= kHugePage) || (small_.left() > 0 && from.size % kHugePage > 0);
}

bool PagesToFill::Range::take(Pages& from, size_t bytes) {
  const size_t before = filled;
  for (const size_t part : move_last(from, begin + filled, bytes)) {
    parts.push_back(part);
    filled += part;
  }
  return filled == before + bytes;
}

bool PagesToFill::take(Pages& from, size_t most) {
  if (!small_.take(from, std::min(small_.left(), from.size % kHugePage))) {
    return false;
  }
  const size_t wanted = most > bytes() ? (most - bytes() + kHugePage - 1) / kHugePage * kHugePage : 0;
  const size_t huge = std::min({wanted, huge_.left(), from.size / kHugePage * kHugePage});
  if (huge > 0 && from.size % kHugePage > 0) {
    unmap_last(from, from.size % kHugePage);
  }
  return huge_.take(from, huge);
}

size_t PagesToFill::finish() {
  pages_.parts = huge_.parts;
  const size_t between = huge_.left() + (small_.filled == 0 ? small_.left() : 0);
  if (between > 0) {
    pages_.parts.push_back(between);
  }
  if (small_.filled > 0) {
    pages_.parts.insert(pages_.parts.end(), small_.parts.begin(), small_.parts.end());
    if (small_.left() > 0) {
      pages_.parts.push_back(small_.left());
    }
  }
  return huge_.left() + small_.left();
}

}  // namespace lehr
