// Tokenizers, token files and corpora made to write out of bounds, to take all memory or all time, or to read
// elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <bit>
#include <chrono>
#include <cstring>

#include "lehr/data/chat_template.h"
#include "lehr/data/corpus.h"
#include "lehr/data/pretokenize.h"
#include "lehr/data/token_file.h"
#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string error_with(const std::string& pointer, const json& value) {
  const TemporaryFolder folder;
  json spec = tiny_tokenizer();
  spec[json::json_pointer(pointer)] = value;
  return usage_error_of([&] { load_json(folder, spec); });
}

// llama.cpp #25969 and #27226: the byte token "<0x-1>" wrote before a table. Spellings are looked up here, never
// parsed.
TEST(HostileTokenizer, ByteTokensAreExactlyTwoHexadecimalDigits) {
  const TemporaryFolder folder;
  json spec = tiny_tokenizer();
  spec["model"]["byte_fallback"] = true;
  int64_t id = 8;
  for (const char* token : {"<0x-1>", "<0x100>", "<0xG1>", "<0x 1>", "<0x7a>", "<0xC3>", "<0x>"}) {
    spec["model"]["vocab"][token] = id++;
  }
  spec["model"]["vocab"]["<0x7A>"] = id;
  const auto tokenizer = load_json(folder, spec);
  EXPECT_THAT(tokenizer->encode("z"), testing::ElementsAre(id)) << "\"z\" is byte 7A";
  EXPECT_TRUE(tokenizer->encode("\xFFy").empty()) << "without a token and without unk_token";
}

// llama.cpp #26690 (types of arrays), #18674 and #19856 (sizes), CVE-2025-49847 (long tokens).
TEST(HostileTokenizer, TypesAndIdsAreChecked) {
  EXPECT_THAT(error_with("/model/vocab/a", 1.5), HasSubstr("the id of \"a\" is not an integer"));
  EXPECT_THAT(error_with("/model/vocab/a", json::array({0})), HasSubstr("the id of \"a\" is not an integer"));
  EXPECT_THAT(error_with("/model/merges", json::array({json::array({1, 2})})), HasSubstr("model.merges[0]: expected"));
  EXPECT_THAT(error_with("/added_tokens/0", "text"), HasSubstr("added_tokens[0]: expected an object"));
  EXPECT_THAT(error_with("/added_tokens/0/id", 1e300), HasSubstr("added_tokens[0].id: wrong type of value: 1e+300"));
  EXPECT_THAT(error_with("/added_tokens/0/id", 1ull << 40), HasSubstr("added_tokens[0]: the id"));
  EXPECT_EQ(error_with("/added_tokens/0/content", std::string(1 << 20, 'x')), "") << "long tokens are only long";
}

TEST(HostileTokenizer, AFewTokensCannotHaveHugeIds) {
  EXPECT_THAT(
      error_with("/model/vocab/abc", 60'000'000),
      HasSubstr("model.vocab: the id 60000000 is far above the number of tokens, 7"));
  EXPECT_THAT(
      error_with("/added_tokens/0/id", 60'000'000),
      HasSubstr("added_tokens[0]: the id 60000000 is far above the number"));
  EXPECT_EQ(error_with("/added_tokens/0/id", 200'000), "") << "padded vocabularies exist";
}

TEST(HostileTokenizer, DeepJsonAndManyStepsAreErrors) {
  const TemporaryFolder folder;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::string text = tiny_tokenizer().dump();
  text.insert(1, "\"post_processor\":" + deep + ",");
  write_file(folder / "tokenizer.json", text);
  EXPECT_THAT(usage_error_of([&] { load_tokenizer(folder.path().string()); }), HasSubstr("tokenizer.json"));
  write_file(folder / "tokenizer.json", tiny_tokenizer().dump());
  write_file(folder / "tokenizer_config.json", "{\"eos_token\":" + deep + "}");
  EXPECT_THAT(usage_error_of([&] { load_tokenizer(folder.path().string()); }), HasSubstr("nested more than 200"));
  EXPECT_THAT(usage_error_of([&] { load_chat_template(folder.path().string()); }), HasSubstr("nested more than 200"));
  json steps = json::array();
  for (int i = 0; i < 65; ++i) {
    steps.push_back({{"type", "Digits"}});
  }
  steps.push_back({{"type", "ByteLevel"}});
  EXPECT_THAT(
      error_with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}), HasSubstr("more than 64 steps"));
}

// NVRx's (a?){40}a{40} and others of which one match takes exponentially many steps, and one whose matches, as many as
// the text has bytes, take linearly many steps each.
TEST(HostilePattern, TheTimeForATextIsLimited) {
  for (const char* pattern :
       {"(a?){40}a{40}b", "(?:a|a|a)*?b", "(?:(?:a+)+)+b", "(?:a+a+)+(?=b)", "a(?=(?:a|x)*?b)|a"}) {
    const auto splitter = make_regex_splitter(pattern, false, SplitBehavior::isolated, false, "test");
    const auto start = std::chrono::steady_clock::now();
    const std::string message =
        usage_error_of([&] { splitter->split(std::string(30'000, 'a') + "cb", [](std::string_view) {}); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << pattern << ": about a second";
    EXPECT_THAT(message, HasSubstr("test: matching the regular expression failed")) << pattern;
  }
}

TEST(HostilePattern, CallsAndCalloutsAreRefused) {
  for (const char* pattern : {"a(?R)?b", "(a(?1)?b)", "(?<n>a(?&n)?b)", "(?P<n>a(?P>n)?b)", "a(?C1)b", "(a)(?-1)"}) {
    EXPECT_THAT(
        usage_error_of([&] { make_regex_splitter(pattern, false, SplitBehavior::isolated, false, "test"); }),
        HasSubstr("test: the regular expression uses '(?"))
        << pattern;
  }
  EXPECT_NO_THROW(
      make_regex_splitter("(?i:a)(?-i:b)(?=c)(?<!d)(?>e)(?:f)", false, SplitBehavior::isolated, false, "test"));
  EXPECT_THAT(
      usage_error_of(
          [] { make_regex_splitter(std::string(20'000, 'a'), false, SplitBehavior::isolated, false, "test"); }),
      HasSubstr("has 20000 bytes, at most 16384"));
}

TEST(HostileData, BombsAreErrors) {
  const TemporaryFolder folder;
  const std::string zeros(size_t{1} << 20, '\0');
  // 3 GB of zeros in some hundred kB. Only what the limit allows is decompressed.
  const auto zst = folder / "a.txt.zst";
  std::string packed(ZSTD_compressBound(zeros.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), zeros.data(), zeros.size(), 1));
  std::string bomb;
  for (int i = 0; i < 3000; ++i) {
    bomb += packed;
  }
  write_file(zst, bomb);
  ASSERT_LT(bomb.size(), size_t{1} << 20);
  EXPECT_THAT(
      usage_error_of([&] { CorpusReader({{.path = zst, .split_documents = "line"}}).next(); }),
      HasSubstr("a.txt.zst: expands to more than 1000 times its size"));
  EXPECT_THAT(usage_error_of([&] { read_whole_file(zst); }), HasSubstr("expands to more than 1000 times its size"));
}

TEST(HostileData, LinksStayInTheFolderAndFormNoLoop) {
  const TemporaryFolder outside, folder;
  write_file(outside / "secret.txt", "key");
  write_file(folder / "a.txt", "a");
  std::filesystem::create_directory(folder / "sub");
  write_file(folder / "sub" / std::string("b.txt"), "b");
  // Two links to the top: without a rule, a tree of 2^40 folders.
  std::filesystem::create_directory_symlink("..", folder / "sub" / std::string("up"));
  std::filesystem::create_directory_symlink("..", folder / "sub" / std::string("again"));
  EXPECT_EQ(list_files({.path = folder.path()}).size(), 2u);
  std::filesystem::create_symlink(outside / "secret.txt", folder / "c.txt");
  EXPECT_THAT(
      usage_error_of([&] { list_files({.path = folder.path()}); }), HasSubstr("c.txt: is a link out of its folder"));
  std::filesystem::remove(folder / "c.txt");
  std::filesystem::create_directory_symlink(outside.path(), folder / "d");
  EXPECT_THAT(
      usage_error_of([&] { list_files({.path = folder.path()}); }), HasSubstr("d: is a link out of its folder"));
}

TEST(HostileData, PipesDoNotBlock) {
  const TemporaryFolder folder;
  const auto pipe = folder / "a.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(is_token_file(pipe));
  EXPECT_THAT(usage_error_of([&] { open_bytes(pipe); }), HasSubstr("expected a file, found a pipe"));
  EXPECT_THAT(usage_error_of([&] { open_token_file(pipe); }), HasSubstr("expected a file, found a pipe"));
}

// The checksums of a token file are no secret, so a header may say anything.
class HostileTokens : public ::testing::Test {
 protected:
  HostileTokens() {
    TokenFileWriter writer(path_, 300);
    writer.append(std::vector<int32_t>{1, 2, 3});
    writer.append(std::vector<int32_t>{4});
    writer.finish();
    good_ = read_file(path_);
  }

  /// The error of the file with a number at `offset` replaced, and a fitting checksum.
  template <class T>
  std::string error_with(size_t offset, T value) {
    std::string bytes = good_;
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    uint64_t hash = 0x9E3779B97F4A7C15;
    for (size_t at = 0; at < 248; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, 8);
      hash = (std::rotl(hash, 23) ^ word) * 0xBF58476D1CE4E5B9;
    }
    std::memcpy(bytes.data() + 248, &hash, 8);
    write_file(path_, bytes);
    return usage_error_of([&] { open_token_file(path_); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "a.tokens";
  std::string good_;
};

TEST_F(HostileTokens, HeadersThatWouldReadBeyondTheFileAreRefused) {
  constexpr size_t kTokenBytes = 12, kTokens = 16, kDocuments = 24, kVocabulary = 32, kMaxId = 40;
  EXPECT_EQ(error_with<int64_t>(kTokens, 4), "") << "unchanged";
  for (const uint32_t bytes : {0u, 1u, 3u, 4u, 0x80000002u}) {
    EXPECT_THAT(error_with<uint32_t>(kTokenBytes, bytes), HasSubstr("the header is damaged")) << bytes;
  }
  for (const int64_t tokens : {int64_t{-4}, INT64_MIN, INT64_MAX, (int64_t{1} << 62) + 4, int64_t{1} << 60}) {
    EXPECT_THAT(error_with<int64_t>(kTokens, tokens), HasSubstr("a.tokens: the header is damaged")) << tokens;
    EXPECT_THAT(error_with<int64_t>(kDocuments, tokens), HasSubstr("a.tokens: the header is damaged")) << tokens;
  }
  EXPECT_THAT(error_with<int64_t>(kMaxId, 300), HasSubstr("the header is damaged"));
  EXPECT_THAT(error_with<int64_t>(kMaxId, -2), HasSubstr("the header is damaged"));
  EXPECT_THAT(error_with<int64_t>(kVocabulary, 0), HasSubstr("the header is damaged"));
  EXPECT_THAT(error_with<int64_t>(kVocabulary, int64_t{1} << 40), HasSubstr("the header is damaged"));
}

}  // namespace
}  // namespace lehr::data
