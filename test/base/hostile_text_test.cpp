// Texts made to exhaust time, memory or the stack, or to write to the terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "lehr/base/file_pattern.h"
#include "lehr/base/printable.h"
#include "lehr/config/json.h"
#include "lehr/config/json_shape.h"
#include "lehr/config/toml.h"
#include "test/base/error_of.h"

namespace lehr {
namespace {

using ::testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

TEST(HostileJson, LargeObjectsAreReadInLinearTime) {
  std::string objects = "{", keys = "{";
  for (int i = 0; i < 100'000; ++i) {
    objects += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":{}";
    keys += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(objects + "}", "a.json").size(), 100'000);
  EXPECT_EQ(parse_json(keys + "}", "a.json").at("k77").key(), "k77");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << "0.3 s; it was minutes";
}

TEST(HostileJson, DepthAndNumberOfValuesAreLimited) {
  EXPECT_THAT(error_of([] { parse_json(std::string(1'000'000, '['), "a.json"); }), HasSubstr("more than 256 levels"));
  EXPECT_THAT(
      error_of([] { parse_json("[" + repeated("0,", 2'000'000) + "0]", "a.json"); }),
      HasSubstr("a.json: more than 2000000 values"));
}

TEST(HostileJson, PlacesOfManyValuesStayShort) {
  const std::string key(100'000, 'k');
  const Node node = parse_json("{\"" + key + "\":[" + repeated("0,", 1000) + "0]}", "a.json");
  EXPECT_LE(node.at(key).at(7).key().size(), 260) << "each value has its own copy";
  EXPECT_THAT(node.at(key).at(7).key(), HasSubstr("k[7]"));
}

TEST(HostileJson, TheShapeIsCheckedBeforeParsersWithoutLimits) {
  EXPECT_EQ(error_of([] { require_json_shape(R"({"a": "[[[[", "b": [[{"c\"]": 1}]]})", "row", 4); }), "no error");
  EXPECT_THAT(
      error_of([] { require_json_shape(R"({"a": [[[1]]]})", "row", 3); }),
      HasSubstr("row: the JSON is nested more than 3"));
  std::string keys = "[{";
  for (int i = 0; i <= 10'000; ++i) {
    keys += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  }
  EXPECT_THAT(
      error_of([&] { require_json_shape(keys + "}]", "row"); }), HasSubstr("row: an object has more than 10000"));
}

TEST(HostileToml, DeepNestingIsAnError) {
  EXPECT_THAT(error_of([] { parse_toml("a = " + std::string(100'000, '['), "a.toml"); }), HasSubstr("a.toml:1:"));
  EXPECT_THAT(error_of([] { parse_toml("a = " + repeated("{ a = ", 100'000), "a.toml"); }), HasSubstr("a.toml:1:"));
  EXPECT_THAT(error_of([] { parse_toml(repeated("a.", 100'000) + "a = 1", "a.toml"); }), HasSubstr("a.toml:1:"));
  EXPECT_THAT(error_of([] { parse_toml("[" + repeated("a.", 100'000) + "a]", "a.toml"); }), HasSubstr("a.toml:1:"));
}

// Found by fuzzing: toml++ has undefined behaviour for U+00A1 and others where a key or value begins.
TEST(HostileToml, CharactersOutsideOfAsciiAreInStringsAndCommentsOnly) {
  for (const char* text :
       {"\xEF\xBB\xBF\xC2\xA1\tW", "a = 1\n\xC2\xA1 = 2", "a = \xC2\xA1", "a\xC3\xA9 = 1", "'a' \xE2\x80\x83 = 1"}) {
    EXPECT_THAT(
        error_of([&] { parse_toml(text, "a.toml"); }), HasSubstr("a character outside of ASCII must be in a string"))
        << text;
  }
  EXPECT_THAT(error_of([] { parse_toml("a = 1\nbc\xC2\xA1 = 2", "a.toml"); }), HasSubstr("a.toml:2:3: invalid TOML"));
  const Node node = parse_toml(
      "\xEF\xBB\xBF# \xC2\xA1\n'\xC2\xA1' = \"\xC2\xA1\\\"\" # \xC2\xA1\n"
      "b = \"\"\"\n\xC2\xA1\"\"\\\"\xC2\xA1\"\"\"\"\nc = '''\xC2\xA1'\n'''\n",
      "a.toml");
  EXPECT_EQ(node.at("\xC2\xA1").as_string(), "\xC2\xA1\"");
  EXPECT_EQ(node.at("b").as_string(), "\xC2\xA1\"\"\"\xC2\xA1\"");
  EXPECT_EQ(node.at("c").as_string(), "\xC2\xA1'\n");
}

// Found by fuzzing: toml++ has undefined behaviour where such characters follow a backslash, or its line break.
TEST(HostileToml, EscapesAreAscii) {
  for (const char* text :
       {"a = \"\\\xC2\xA1\"", "a = \"\"\"b\n\\\xC2\x80\"\"\"", "a.b.c = \"\"\"a\\\t\xCF\x95\\u00 x\"~."}) {
    EXPECT_THAT(error_of([&] { parse_toml(text, "a.toml"); }), HasSubstr("a.toml:"));
  }
  for (const char* text :
       {"a = \"\"\"b\\\n \xCF\x95\"\"\"", "a = \"\"\"\\\n\nb\xCF\x95\"\"\"", "a = \"\"\"b\xCF\x95\\  \n  \"\"\""}) {
    EXPECT_EQ(parse_toml(text, "a.toml").at("a").as_string(), "b\xCF\x95");
  }
  EXPECT_EQ(parse_toml("a = \"\\\\\xC2\xA1 \\u00E9\"", "a.toml").at("a").as_string(), "\\\xC2\xA1 \xC3\xA9");
  EXPECT_EQ(parse_toml("a = '\\\xC2\xA1'", "a.toml").at("a").as_string(), "\\\xC2\xA1");
}

// Found by fuzzing: an assertion of toml++.
TEST(HostileToml, NoKeyBeginsWithADotOrAnotherSign) {
  for (const char* text : {"\n[[= + = F.", "[]", "[[]]", " [ =a]", "[[\n", "["}) {
    EXPECT_THAT(error_of([&] { parse_toml(text, "a.toml"); }), HasSubstr("expected the name of a table")) << text;
  }
  EXPECT_EQ(parse_toml("a = [\n [1], # [\n [ ],\n[[\"]\"], []],\n]\n[['b']]\n[ \"c\" ]", "a.toml").at("a").size(), 3u);
  for (const char* text : {"a..b = 1", ".a = 1", "a = .5", "a = [1, .5]"}) {
    EXPECT_THAT(error_of([&] { parse_toml(text, "a.toml"); }), HasSubstr("before the dot")) << text;
  }
  EXPECT_EQ(parse_toml("a . \"b.c\" . d = 1.5\n[x. y]", "a.toml").at("a").at("b.c").at("d").as_double(), 1.5);
}

// Found by fuzzing: toml++ takes it for a part of the number.
TEST(HostileToml, StringsBeginBetweenWords) {
  for (const char* text : {"a = 19'''79\xD0\x85'''", "a = 1\"\xC2\xA1\"", "a\"b\" = 1", "a = +'x'"}) {
    EXPECT_THAT(error_of([&] { parse_toml(text, "a.toml"); }), HasSubstr("a string in the middle of a word")) << text;
  }
}

// Found by fuzzing: a time with other characters in place of digits.
TEST(HostileToml, AssertionsOfTheParserAreErrors) {
  EXPECT_THAT(
      error_of([] { parse_toml("a = 1979-05-27T)7:F3:F2F.FFFFFFFFFF\n", "a.toml"); }), HasSubstr("invalid TOML"));
}

// The pattern that locks up engines without limits (NVRx's attribution service, transformers' ReDoS CVEs).
TEST(FilePattern, GivesUpInsteadOfBacktrackingForever) {
  const FilePattern pattern("(a?){40}a{40}b", "adapter_config.json: rank_pattern");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(
      error_of([&] { pattern.matches(std::string(60, 'a') + "cb"); }),
      HasSubstr("adapter_config.json: rank_pattern: the regular expression takes too many steps"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(FilePattern, LimitsLengthAndDepthOfThePattern) {
  EXPECT_THAT(error_of([] { FilePattern(std::string(5000, 'a'), "p"); }), HasSubstr("has 5000 bytes, at most 4096"));
  EXPECT_THAT(error_of([] { FilePattern(repeated("(", 2000), "p"); }), HasSubstr("is not a supported regular"));
  EXPECT_THAT(error_of([] { FilePattern("((a{1000}){1000}){1000}", "p"); }), HasSubstr("is not a supported regular"));
}

TEST(FilePattern, MatchesWholeTexts) {
  const FilePattern pattern(R"((.*\.)?(layers\.[0-3]\.q_proj|v_proj))", "p");
  EXPECT_TRUE(pattern.matches("model.layers.2.q_proj"));
  EXPECT_TRUE(pattern.matches("v_proj"));
  EXPECT_FALSE(pattern.matches("model.layers.4.q_proj"));
  EXPECT_FALSE(pattern.matches("model.layers.2.q_proj.weight"));
  EXPECT_FALSE(pattern.matches("av_proj"));
}

TEST(Printable, ShowsControlCharacters) {
  EXPECT_EQ(printable("a\x1B]0;title\x07\x7F\r\n\tb"), "a\\x1B]0;title\\x07\\x7F\\x0D\n\tb");
  EXPECT_EQ(
      printable("\xC3\xA9 \xC2\x9B"
                "31m \xC2\xA9"),
      "\xC3\xA9 \\x9B31m \xC2\xA9")
      << "C1 controls, but no letters";
}

}  // namespace
}  // namespace lehr
