#include "lehr/base/map_pages.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace lehr {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

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

}  // namespace lehr
