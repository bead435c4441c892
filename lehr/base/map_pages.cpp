#include "lehr/base/map_pages.h"

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
  madvise(first + before, size, MADV_HUGEPAGE);  // a wish
  return first + before;
}

namespace {
// The system unmaps what is at the target of a move before it knows all reasons to refuse it.
void close_hole(std::byte* at, size_t size) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  void* const pages = mmap(at, size, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (pages == at) {
    madvise(at, size, MADV_HUGEPAGE);
  } else if (pages != MAP_FAILED) {  // a system that knows no MAP_FIXED_NOREPLACE: there was no hole
    munmap(pages, size);
  } else if (errno != EEXIST) {
    fail_runtime("memory: {} MiB were lost while the system moved them: {}", size >> 20, std::strerror(errno));
  }
}
}  // namespace

std::vector<size_t> move_pages(Pages& from, std::byte* to, size_t most) {
  const auto drop = [&](size_t bytes) {
    from.size -= bytes;
    from.parts.back() -= bytes;
    if (from.parts.back() == 0) {
      from.parts.pop_back();
    }
  };
  std::vector<size_t> moved;
  while (most > 0 && from.size > 0) {
    if (const size_t behind = from.size % kHugePage; behind > 0) {
      munmap(from.begin + from.size - behind, behind);
      drop(behind);
      continue;
    }
    const size_t bytes = std::min(most, from.parts.back());
    if (mremap(from.begin + from.size - bytes, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
      close_hole(to, bytes);
      break;
    }
    drop(bytes);
    moved.push_back(bytes);
    to += bytes;
    most -= bytes;
  }
  return moved;
}

}  // namespace lehr
