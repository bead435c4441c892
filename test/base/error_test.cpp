#include "lehr/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lehr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::StartsWith;
using ::testing::Throws;

TEST(Error, HasAnExitCodeThatTellsWhoCanFixIt) {
  EXPECT_EQ(Error(ErrorKind::runtime, "").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::usage, "").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::bug, "").exit_code(), 4);
}

TEST(Invariant, IfBrokenAsksForABugReportWithTheCallStack) {
  EXPECT_NO_THROW(invariant(true, "stage {}", 3));
  EXPECT_THAT(
      [] { invariant(false, "stage {} ran twice", 3); },
      Throws<Error>(AllOf(
          Property(&Error::kind, ErrorKind::bug),
          Property(&Error::what, StartsWith("bug in Lehr: stage 3 ran twice. ")),
          Property(&Error::what, HasSubstr("report")),
          Property(&Error::what, HasSubstr("frame #")))));
}

}  // namespace
}  // namespace lehr
