// Classes of code points, NFC and UTF-8 repair, compared with tables that were observed in `tokenizers`.
#include "lehr/data/unicode.h"

#include <gtest/gtest.h>

#include "lehr/data/normalize.h"
#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using nlohmann::json;

const json& observed() {
  static const json tables = json::parse(read_whole_file(fixture("unicode_tables.json.gz")));
  return tables;
}

std::string utf8(const std::vector<uint32_t>& codes) {
  std::string text;
  for (const uint32_t code : codes) {
    append_utf8(text, code);
  }
  return text;
}

std::string nfc(std::string_view text) {
  std::string buffer;
  return std::string(to_nfc(text, buffer));
}

TEST(CodePoints, HaveTheObservedClass) {
  std::vector<CharKind> expected(0x110001, CharKind::other);
  const std::pair<const char*, CharKind> kinds[] = {
      {"regex_L", CharKind::letter}, {"regex_N", CharKind::number}, {"regex_s", CharKind::space}};
  for (const auto& [key, kind] : kinds) {
    for (const json& range : observed()[key]) {
      for (uint32_t code = range[0]; code <= range[1]; ++code) {
        expected[code] = kind;
      }
    }
  }
  const CodePoints& table = CodePoints::get();
  for (uint32_t code = 0; code <= 0x110000; ++code) {
    ASSERT_EQ(table.kind(code), expected[code]) << code;
  }
}

TEST(DecodeUtf8, DecodesEveryCodePointAndRefusesSurrogates) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    const std::string text = utf8({code});
    const DecodedChar c = decode_utf8(text.data(), text.data() + text.size());
    if (code >= 0xD800 && code < 0xE000) {
      ASSERT_EQ(c.code, kInvalidCode) << code;
    } else {
      ASSERT_EQ(c.code, code);
      ASSERT_EQ(c.size, text.size()) << code;
    }
  }
}

TEST(ReplaceInvalidUtf8, ReplacesMaximalSubpartsAsRustDoes) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("plain \xE4\xB8\xAD"), "plain \xE4\xB8\xAD");
  EXPECT_EQ(replace_invalid_utf8("a\x80z"), "a" + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE4\xB8"), r);  // truncated: one replacement for both bytes
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98z"), r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF0\x80\x80\x41"), r + r + r + "A");
}

TEST(Nfc, ComposesEveryObservedPair) {
  for (const json& row : observed()["nfc_compositions"]) {
    EXPECT_EQ(nfc(utf8({row[0], row[1]})), utf8({row[2]})) << row.dump();
  }
}

TEST(Nfc, MapsEveryCodePointAndItsDecompositionToTheSameText) {
  for (const json& row : observed()["nfd_decompositions"]) {
    const auto codes = row.get<std::vector<uint32_t>>();
    const std::string whole = utf8({codes[0]});
    const std::string parts = utf8({codes.begin() + 1, codes.end()});
    EXPECT_EQ(nfc(whole), nfc(parts)) << row.dump();
    EXPECT_EQ(nfc("1" + whole + "1"), "1" + nfc(parts) + "1") << row.dump();
  }
}

TEST(Nfc, ComposesHangulOfAllShapes) {
  for (uint32_t syllable = 0xAC00; syllable < 0xAC00 + 11172; ++syllable) {
    const uint32_t index = syllable - 0xAC00;
    std::vector<uint32_t> jamo = {0x1100 + index / 588, 0x1161 + index % 588 / 28};
    if (index % 28 != 0) {
      jamo.push_back(0x11A7 + index % 28);
    }
    ASSERT_EQ(nfc(utf8(jamo)), utf8({syllable}));
    ASSERT_EQ(nfc(utf8({syllable})), utf8({syllable}));
  }
}

TEST(Nfc, SortsMarksByClassAndKeepsABlockedMark) {
  // Dot below (220) comes before the acute accent (230), and both join the e.
  EXPECT_EQ(nfc(utf8({'e', 0x301, 0x323})), utf8({0x1EB9, 0x301}));
  // A second mark of the same class is blocked.
  EXPECT_EQ(nfc(utf8({'a', 0x30D, 0x301})), utf8({'a', 0x30D, 0x301}));
  EXPECT_EQ(nfc(utf8({0x301, 'a'})), utf8({0x301, 'a'}));
}

TEST(Nfc, ReturnsTextThatNeedsNothingWithoutACopy) {
  const std::string text = "plain, na\xC3\xAFve, \xE4\xB8\xAD\xE6\x96\x87, \xED\x95\x9C";
  std::string buffer;
  EXPECT_EQ(to_nfc(text, buffer).data(), text.data());
  EXPECT_TRUE(buffer.empty());
}

TEST(Nfc, KeepsInvalidBytesWhereTheyAre) {
  const std::string text =
      "a\xFF\xCC\x81\xE4\xB8"
      "e\xCC\x81\xFF";
  EXPECT_EQ(nfc(text), "a\xFF\xCC\x81\xE4\xB8\xC3\xA9\xFF");
}

}  // namespace
}  // namespace lehr::data
