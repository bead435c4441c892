// Memory mapped from the system in whole pages.
#include "lehr/memory/map_pages.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cstring>

namespace lehr {
namespace {
using testing::ElementsAre;
using testing::IsEmpty;

TEST(MapPages, AlignsLargeBlocksToHugePages) {
  for (const size_t size : {size_t{4096}, size_t{2} << 20, (size_t{5} << 20) + 4096}) {
    void* const block = map_pages(size);
    ASSERT_NE(block, nullptr);
    const size_t step = size >= (size_t{2} << 20) ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % step, 0) << size;
    std::memset(block, 1, size);
    EXPECT_EQ(::munmap(block, size), 0);
  }
}

TEST(MoveLast, MovesTheContentAndLeavesTheRest) {
  constexpr size_t kSize = 3 * kHugePage;
  Pages from{static_cast<std::byte*>(map_pages(kSize)), kSize, {kSize}};
  Pages to{static_cast<std::byte*>(map_pages(4 * kHugePage)), 4 * kHugePage, {4 * kHugePage}};
  ASSERT_TRUE(from.begin != nullptr && to.begin != nullptr);
  for (int i = 0; i < 3; ++i) {
    std::memset(from.begin + static_cast<size_t>(i) * kHugePage, 1 + i, kHugePage);
  }
  EXPECT_THAT(move_last(from, to.begin, 2 * kHugePage), ElementsAre(2 * kHugePage));
  EXPECT_EQ(from.size, kHugePage);
  EXPECT_THAT(from.parts, ElementsAre(kHugePage));
  EXPECT_THAT(move_last(from, to.begin + 2 * kHugePage, kHugePage), ElementsAre(kHugePage));
  EXPECT_EQ(from.size, 0);
  EXPECT_THAT(from.parts, IsEmpty());
  const int expected[] = {2, 3, 1, 0};  // the last pages move first; pages beyond the filled ones are untouched
  for (size_t i = 0; i < 4; ++i) {
    for (const size_t at : {size_t{0}, kHugePage - 1}) {
      EXPECT_EQ(static_cast<int>(to.begin[i * kHugePage + at]), expected[i]) << i;
    }
  }
  // Pages that were moved move again, part by part.
  to.parts = {2 * kHugePage, kHugePage, kHugePage};
  Pages last{static_cast<std::byte*>(map_pages(4 * kHugePage)), 4 * kHugePage, {4 * kHugePage}};
  EXPECT_THAT(move_last(to, last.begin, 3 * kHugePage), ElementsAre(kHugePage, kHugePage, kHugePage));
  EXPECT_EQ(static_cast<int>(last.begin[kHugePage]), 1);
  EXPECT_EQ(static_cast<int>(to.begin[0]), 2);
  EXPECT_EQ(::munmap(to.begin, to.size), 0);
  EXPECT_EQ(::munmap(last.begin, last.size), 0);
}

TEST(MoveLast, KeepsBothMappingsUsableIfTheSystemRefusesAMove) {
  // Two mappings described as one: the system refuses to move a range across their border, or (newer kernels) moves it.
  auto* const block = static_cast<std::byte*>(map_pages(2 * kHugePage));
  auto* const to = static_cast<std::byte*>(map_pages(2 * kHugePage));
  ASSERT_TRUE(block != nullptr && to != nullptr);
  ASSERT_EQ(::madvise(block + kHugePage, kHugePage, MADV_DONTFORK), 0);
  std::memset(block, 3, 2 * kHugePage);
  Pages from{block, 2 * kHugePage, {2 * kHugePage}};
  const bool moved = !move_last(from, to, 2 * kHugePage).empty();
  std::byte* const holder = moved ? to : block;
  EXPECT_EQ(static_cast<int>(holder[0]), 3);
  EXPECT_EQ(static_cast<int>(holder[2 * kHugePage - 1]), 3);
  std::memset(to, 4, 2 * kHugePage);
  EXPECT_EQ(from.size, moved ? 0 : 2 * kHugePage);
  EXPECT_EQ(::munmap(to, 2 * kHugePage), 0);
  EXPECT_EQ(::munmap(block, 2 * kHugePage), 0);
}

TEST(UnmapLast, LeavesWholeHugePages) {
  Pages pages{static_cast<std::byte*>(map_pages(3 * kHugePage)), 3 * kHugePage, {kHugePage, 2 * kHugePage}};
  ASSERT_NE(pages.begin, nullptr);
  unmap_last(pages, kHugePage + 4096);
  EXPECT_EQ(pages.size, kHugePage);
  EXPECT_THAT(pages.parts, ElementsAre(kHugePage));
  std::memset(pages.begin, 1, kHugePage);
  unmap_last(pages, 1);
  EXPECT_EQ(pages.size, 0);
  EXPECT_THAT(pages.parts, IsEmpty());
}

TEST(PagesToFill, TakeSmallPagesBehindHugeOnes) {
  constexpr size_t kFrom = 2 * kHugePage + 12288, kTo = 2 * kHugePage + 8192;
  Pages from{static_cast<std::byte*>(map_pages(kFrom)), kFrom, {kFrom}};
  Pages to{static_cast<std::byte*>(map_pages(kTo)), kTo};
  ASSERT_TRUE(from.begin != nullptr && to.begin != nullptr);
  std::memset(from.begin, 1, 2 * kHugePage);
  std::memset(from.begin + 2 * kHugePage, 2, 12288);
  PagesToFill filling(to);
  ASSERT_TRUE(filling.can_use(from));
  EXPECT_TRUE(filling.take(from, kHugePage));
  EXPECT_EQ(filling.bytes(), kHugePage + 8192) << "small ones, and as many huge ones as are wanted";
  EXPECT_EQ(from.size, kHugePage) << "4096 bytes behind its last huge page went to the system";
  EXPECT_EQ(filling.finish(), kHugePage);
  EXPECT_THAT(to.parts, ElementsAre(kHugePage, kHugePage, 8192));
  EXPECT_EQ(static_cast<int>(to.begin[0]), 1);
  EXPECT_EQ(static_cast<int>(to.begin[kHugePage]), 0) << "fresh";
  EXPECT_EQ(static_cast<int>(to.begin[2 * kHugePage]), 2);
  EXPECT_EQ(static_cast<int>(to.begin[kTo - 1]), 2);
  EXPECT_EQ(::munmap(from.begin, from.size), 0);
  EXPECT_EQ(::munmap(to.begin, to.size), 0);
}

TEST(MapPages, ReturnsNullIfTheSystemHasTooLittleMemory) {
  EXPECT_EQ(map_pages(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace lehr
