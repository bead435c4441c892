// Whole pages of memory from the system.
#include "lehr/base/map_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace lehr {
namespace {

TEST(MapPages, LargeBlocksBeginOnAHugePage) {
  for (const size_t size : {size_t{4096}, size_t{2} << 20, (size_t{5} << 20) + 4096}) {
    void* const block = map_pages(size);
    ASSERT_NE(block, nullptr);
    const size_t step = size >= (size_t{2} << 20) ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % step, 0) << size;
    std::memset(block, 1, size);
    EXPECT_EQ(::munmap(block, size), 0);
  }
}

TEST(MapPages, MoreThanThereIsIsNull) {
  EXPECT_EQ(map_pages(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace lehr
