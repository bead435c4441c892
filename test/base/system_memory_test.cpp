// What the system gives and says of memory.
#include "lehr/base/system_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace lehr {
namespace {

TEST(SystemMemory, LargeBlocksBeginOnAHugePage) {
  for (const size_t size : {size_t{4096}, size_t{2} << 20, (size_t{5} << 20) + 4096}) {
    void* const block = map_pages(size);
    ASSERT_NE(block, nullptr);
    const size_t step = size >= (size_t{2} << 20) ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % step, 0) << size;
    std::memset(block, 1, size);
    EXPECT_EQ(::munmap(block, size), 0);
  }
}

TEST(SystemMemory, MoreThanThereIsIsNull) {
  EXPECT_EQ(map_pages(size_t{1} << 60), nullptr);
}

TEST(SystemMemory, WhatIsAvailableIsAPartOfAll) {
  const int64_t all = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), all);
}

}  // namespace
}  // namespace lehr
