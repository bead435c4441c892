// Patterns of configs: whole names, parts of names, and the message for an invalid one.
#include "lehr/base/name_pattern.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"

namespace lehr {
namespace {
using testing::HasSubstr;

TEST(NamePattern, MatchesWholeNamesOrParts) {
  const NamePattern pattern(R"(layers\.\d+\.q_proj)");
  EXPECT_TRUE(pattern.matches("layers.12.q_proj"));
  EXPECT_FALSE(pattern.matches("model.layers.12.q_proj"));
  EXPECT_TRUE(pattern.matches_part("model.layers.12.q_proj.weight"));
  EXPECT_FALSE(pattern.matches_part("layers.q_proj"));
}

TEST(NamePattern, SaysWhyAPatternIsInvalid) {
  EXPECT_EQ(NamePattern::problem("a.*"), "");
  EXPECT_THAT(NamePattern::problem("a("), HasSubstr("\"a(\" is not a regular expression: "));
  EXPECT_THROW(NamePattern("a("), Error);
}

}  // namespace
}  // namespace lehr
