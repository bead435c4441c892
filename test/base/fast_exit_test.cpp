#include "lehr/base/fast_exit.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace lehr {
namespace {

[[noreturn]] void write_and_leave() {
  static std::array<char, 4096> buffer;
  std::setvbuf(stderr, buffer.data(), _IOFBF, buffer.size());
  std::fputs("still buffered", stderr);
  fast_exit(3);
}

TEST(FastExitDeathTest, EndsWithTheExitCodeAndFlushedOutput) {
  EXPECT_EXIT(write_and_leave(), ::testing::ExitedWithCode(3), "still buffered");
}

}  // namespace
}  // namespace lehr
