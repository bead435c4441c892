#include "lehr/config/help_text.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace lehr {
namespace {

TEST(HelpText, BreaksLinesBetweenWordsAndLosesNone) {
  std::string help;
  for (int i = 0; i < 60; ++i) {
    help += (i == 0 ? "" : " ") + std::string(static_cast<size_t>(1 + i % 11), static_cast<char>('a' + i % 26));
  }
  std::istringstream lines(wrapped_help(help));
  std::string joined;
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.substr(0, 6), "      ");
    EXPECT_LE(line.size(), 98u) << line;
    joined += (joined.empty() ? "" : " ") + line.substr(6);
  }
  EXPECT_EQ(joined, help);
  EXPECT_GE(count, 4);
}

TEST(HelpText, KeepsAWordThatIsLongerThanALine) {
  const std::string word(120, 'x');
  EXPECT_EQ(wrapped_help(word + " a b"), "      " + word + "\n      a b\n");
  EXPECT_EQ(wrapped_help("short"), "      short\n");
  EXPECT_EQ(wrapped_help(""), "");
}

}  // namespace
}  // namespace lehr
