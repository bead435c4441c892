// The hand-written scanners split text like the regular expressions.
#include "lehr/data/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lehr/data/unicode.h"
#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;

const char* const kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> pieces(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> found;
  splitter.split(text, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

std::unique_ptr<Splitter> regex(const std::string& pattern) {
  return make_regex_splitter(pattern, false, SplitBehavior::isolated, false, "test");
}

TEST(Scanner, CutsQwen2Words) {
  const auto scanner = make_scanner(kQwen2);
  ASSERT_NE(scanner, nullptr);
  EXPECT_THAT(
      pieces(*scanner, "I'm  here:\n\n  don'T 42 (x)\t "),
      ElementsAre("I", "'m", " ", " here", ":\n\n", " ", " don", "'T", " ", "4", "2", " (", "x", ")", "\t "));
  EXPECT_THAT(pieces(*scanner, " \n \n  a"), ElementsAre(" \n \n", " ", " a"));
  EXPECT_THAT(pieces(*scanner, "'\xC5\xBF'"), ElementsAre("'\xC5\xBF", "'"));
}

TEST(Scanner, ExistsForKnownPatternsOnly) {
  EXPECT_NE(make_scanner(kLlama3), nullptr);
  EXPECT_NE(make_scanner(kGpt2Pattern), nullptr);
  EXPECT_EQ(make_scanner(std::string(kQwen2) + "|x"), nullptr);
}

/// Texts with characters that PCRE2's own Unicode tables classify differently are left out: the oracle marks them.
TEST(Scanner, CutsEveryOracleTextAsTheRegularExpressionDoes) {
  size_t compared = 0;
  for (const char* pattern : {kQwen2, kLlama3, kGpt2Pattern}) {
    const auto scanner = make_scanner(pattern);
    const auto engine = regex(pattern);
    for (const auto& row : read_jsonl("cases/encode.jsonl.gz")) {
      const auto text = row["text"].get<std::string>();
      if (!row.contains("unicode_version_sensitive")) {
        EXPECT_EQ(pieces(*scanner, text), pieces(*engine, text)) << pattern << "\n" << row.dump();
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 800u);
}

TEST(Scanner, KeepsEveryByteOfInvalidText) {
  std::string bytes;
  for (int i = 0; i < 4096; ++i) {
    bytes += static_cast<char>(i * i * 31 + i / 7);
  }
  for (const char* pattern : {kQwen2, kLlama3, kGpt2Pattern}) {
    for (const auto& splitter : {make_scanner(pattern), regex(pattern)}) {
      std::string joined;
      for (const std::string& piece : pieces(*splitter, bytes)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      EXPECT_EQ(joined, bytes) << pattern;
    }
  }
}

TEST(RegexSplitter, RefusesSyntaxThatOnigurumaReadsDifferently) {
  for (const char* pattern : {"[a-z&&[^b]]+", "\\h+", "^a", "a$", "(?m:a.)", "[a[bc]]"}) {
    const std::string message = usage_error_of([&] { regex(pattern); });
    EXPECT_THAT(message, testing::HasSubstr("test: the regular expression uses")) << pattern;
  }
  EXPECT_THAT(usage_error_of([] { regex("(a"); }), testing::HasSubstr("does not compile"));
  EXPECT_NO_THROW(regex("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[[:alpha:]]"));
}

/// A pattern that backtracks without end is stopped with an error.
TEST(RegexSplitter, GivesUpOnCatastrophicPatternsWithAnError) {
  const auto splitter = regex("(?:a|a|b)*c(?=d)|(?:a+)+e");
  const std::string message = usage_error_of([&] { pieces(*splitter, std::string(5000, 'a')); });
  EXPECT_THAT(message, testing::HasSubstr("test: matching the regular expression failed at byte 0"));
}

}  // namespace
}  // namespace lehr::data
