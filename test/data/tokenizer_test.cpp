// Guarantees of every tokenizer: round trips, threads, linear time, special tokens, files.
#include "lehr/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lehr/data/unicode.h"
#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int32_t>;

TEST(Tokenizer, HasItsSizeAndItsNamedTokens) {
  EXPECT_EQ(qwen3().vocab_size(), 151669);
  EXPECT_EQ(qwen3().eos_id(), 151645);
  EXPECT_EQ(qwen3().pad_id(), 151643);
  EXPECT_EQ(qwen3().bos_id(), std::nullopt);
}

TEST(Tokenizer, DecodesItsIdsToTheSameText) {
  for (const char* file : {"cases/blns.txt.gz", "cases/instruction-data.json.gz"}) {
    const std::string text = read_whole_file(fixture(file));
    // Every line except those that NFC changes.
    size_t changed = 0;
    size_t lines = 0;
    for (size_t begin = 0; begin < text.size(); ++lines) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      changed += qwen3().decode(qwen3().encode(line)) != line ? 1 : 0;
      begin = end + 1;
    }
    EXPECT_LE(changed, 12u) << file << " of " << lines;
    EXPECT_GT(lines, 500u);
  }
}

TEST(Tokenizer, KeepsEveryByteOfInvalidUtf8) {
  std::string bytes;
  for (int i = 0; i < 70000; ++i) {
    bytes += static_cast<char>((i * 2654435761u) >> 13);
  }
  const Ids ids = qwen3().encode(bytes);
  EXPECT_EQ(qwen3().decode(ids), replace_invalid_utf8(bytes));
}

TEST(Tokenizer, ReturnsTheSameIdsToConcurrentThreads) {
  const auto rows = read_jsonl("cases/encode.jsonl.gz");
  const auto tokenizer = load_tokenizer(fixture("qwen3").string());  // a fresh one, whose memo is still empty
  std::vector<size_t> wrong(8, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto& row = rows[(i * 7 + t * 41) % rows.size()];
        wrong[t] += tokenizer->encode(row["text"].get<std::string>()) != row["ids"].get<Ids>() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(wrong, testing::Each(0u));
}

/// Quadratic work on a million bytes would take minutes; 20 seconds leave room for sanitizers and a busy machine.
TEST(Tokenizer, TakesAboutLinearTimeForAnyInput) {
  std::string letters;
  uint32_t state = 1;
  for (int i = 0; i < 1'000'000; ++i) {
    state = state * 1664525 + 1013904223;
    letters += static_cast<char>('a' + (state >> 24) % 26);
  }
  std::string marks = "e";
  for (int i = 0; i < 250'000; ++i) {
    marks += "\xCC\x81\xCC\xA3";
  }
  std::string starts;
  for (int i = 0; i < 100'000; ++i) {
    starts += "<|im_start";
  }
  const std::string inputs[] = {
      std::string(1'000'000, 'a'),
      std::string(1'000'000, ' '),
      "\n" + std::string(1'000'000, ' ') + "x",
      std::string(1'000'000, '-'),
      std::string(1'000'000, '\xFF'),
      letters,
      marks,
      starts};
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& input : inputs) {
    EXPECT_EQ(qwen3().decode(qwen3().encode(input)).empty(), false);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Tokenizer, SkipsSpecialTokensAndUnassignedIds) {
  const Ids ids = qwen3().encode("<|im_start|>hi<think><|im_end|>");
  EXPECT_THAT(ids, ElementsAre(151644, 6023, 151667, 151645));
  EXPECT_EQ(qwen3().decode(ids), "<|im_start|>hi<think><|im_end|>");
  EXPECT_EQ(qwen3().decode(ids, true), "hi<think>");  // "<think>" is an added token, but not a special one
  EXPECT_EQ(qwen3().decode(Ids{151900, -1, 6023, INT32_MAX, INT32_MIN}), "hi");
}

TEST(Tokenizer, ExportsItsFilesUnpacked) {
  const TemporaryFolder folder;
  for (const auto& [name, content] : tokenizer_file_contents(qwen3())) {
    write_file(folder / name, content);
  }
  EXPECT_EQ(num_files(folder), 2u);
  EXPECT_EQ(read_file(folder / "tokenizer.json"), read_whole_file(fixture("qwen3/tokenizer.json.gz")));
  const auto again = load_tokenizer(folder.path().string());
  EXPECT_EQ(again->eos_id(), qwen3().eos_id());
  EXPECT_EQ(again->encode("Hello, world!"), qwen3().encode("Hello, world!"));
}

/// Recorded with `tokenizers` 0.23.3.
TEST(Tokenizer, AnAddedTokenInTheWhiteSpaceOfTheOneBeforeItIsFoundAndEndsBoth) {
  const TemporaryFolder folder;
  auto spec = tiny_tokenizer();
  spec["model"]["vocab"]["Ċ"] = 8;  // the newline
  spec["added_tokens"].push_back({{"id", 9}, {"content", "   "}, {"rstrip", true}, {"normalized", false}});
  spec["added_tokens"].push_back({{"id", 10}, {"content", "\n\n"}, {"normalized", false}});
  spec["added_tokens"].push_back({{"id", 11}, {"content", "\n\n\n"}, {"lstrip", true}, {"normalized", false}});
  const auto tokenizer = load_json(folder, spec);
  EXPECT_THAT(tokenizer->encode("a   b"), ElementsAre(0, 9, 1));
  EXPECT_THAT(tokenizer->encode("a   \n\nb"), ElementsAre(0, 9, 10, 1));
  EXPECT_THAT(tokenizer->encode("a   \n\n b"), ElementsAre(0, 9, 10, 3, 1));
  EXPECT_THAT(tokenizer->encode("a   \n\n\nb"), ElementsAre(0, 9, 1)) << "lstrip: nothing is left for the token";

  const std::string spaces(300'000, ' ');
  EXPECT_EQ(tokenizer->encode(spaces).size(), 100'000u) << "and without quadratic work";
}

TEST(Tokenizer, ReadsNamedTokensThatAreObjects) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", tiny_tokenizer().dump());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "bos_token": "abc"})");
  const auto tokenizer = load_tokenizer(folder.path().string());
  EXPECT_EQ(tokenizer->eos_id(), 7);
  EXPECT_EQ(tokenizer->bos_id(), 6);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->files().size(), 2u);
  EXPECT_THAT(tokenizer->encode("abc ab<end>"), ElementsAre(6, 5, 7));
}

TEST(Tokenizer, ReadsNamedTokensOfOlderFoldersAndBesideANamedFile) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", tiny_tokenizer().dump());
  EXPECT_EQ(load_tokenizer(folder.path().string())->eos_id(), std::nullopt);
  write_file(folder / "special_tokens_map.json", R"({"eos_token": {"content": "<end>"}, "pad_token": "<new>"})");
  EXPECT_EQ(load_tokenizer(folder.path().string())->eos_id(), 7);
  EXPECT_EQ(load_tokenizer(folder.path().string())->pad_id(), std::nullopt) << "no token of the tokenizer";
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "abc"})");
  EXPECT_EQ(load_tokenizer(folder.path().string())->eos_id(), 7) << "the older file counts, as in transformers";
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "abc", "added_tokens_decoder": {}})");
  EXPECT_EQ(load_tokenizer(folder.path().string())->eos_id(), 6);
  const auto named = load_tokenizer((folder / "tokenizer.json").string());
  EXPECT_EQ(named->eos_id(), 6);
  EXPECT_EQ(named->files().size(), 3u);
  write_file(folder / "other.json", tiny_tokenizer().dump());
  EXPECT_EQ(load_tokenizer((folder / "other.json").string())->eos_id(), std::nullopt) << "those of another file";
}

TEST(ByteTokenizer, MapsBytesToIds) {
  const auto tokenizer = load_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->files().empty());
  EXPECT_THAT(tokenizer->encode("a\xC3\xA9\xFF"), ElementsAre(97, 0xC3, 0xA9, 0xFF));
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->decode(Ids{97, 256, 0xC3, 0xA9, 0xFF, 300, -1}), "a\xC3\xA9\xEF\xBF\xBD");
}

}  // namespace
}  // namespace lehr::data
