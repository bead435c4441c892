#include "lehr/base/leave.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace lehr {
namespace {

[[noreturn]] void write_and_leave() {
  static std::array<char, 4096> buffer;
  std::setvbuf(stderr, buffer.data(), _IOFBF, buffer.size());
  std::fputs("last words", stderr);
  leave(3);
}

TEST(LeaveDeathTest, EndsWithTheCodeAndWhatWasWritten) {
  EXPECT_EXIT(write_and_leave(), ::testing::ExitedWithCode(3), "last words");
}

}  // namespace
}  // namespace lehr
