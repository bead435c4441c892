// Tokenization by several threads: the same file for any number of them, and no file after an error.
#include "lehr/data/tokenize_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "lehr/data/ordered_pipeline.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TokenizeCorpus, TheFileDoesNotDependOnTheNumberOfThreads) {
  const TemporaryFolder folder;
  const BytesForTests tokenizer;
  const std::vector<TextSource> sources = {
      {.path = repository("recipe/data/tinyshakespeare.txt"), .split_documents = "blank_line"},
      {.path = repository("recipe/data/c4_sample.jsonl")}};
  std::string first;
  for (const int64_t threads : {1, 2, 5}) {
    const auto path = folder / fmt::format("{}.tokens", threads);
    const TokenFileInfo info = tokenize_corpus(sources, tokenizer, path, {.num_threads = threads});
    EXPECT_GT(info.num_documents, 7000);
    first = first.empty() ? read_file(path) : first;
    EXPECT_TRUE(read_file(path) == first) << threads << " threads";
  }
}

TEST(TokenizeCorpus, EndsEveryDocumentAndReportsProgress) {
  const TemporaryFolder folder;
  const auto source = write_file(folder / "a.txt", "ab\nc\n");
  const TextSource lines{.path = source, .split_documents = "line"};
  TokenizeProgress last;
  const auto with_eos = [&](const Tokenizer& tokenizer, bool append) {
    tokenize_corpus(
        {lines}, tokenizer, folder / "a.tokens", {.append_eos = append, .progress = [&](const TokenizeProgress& now) {
                                                    last = now;
                                                  }});
    const TokenStream stream = open_token_file(folder / "a.tokens");
    return stream.ids({0, stream.num_tokens()});
  };
  EXPECT_THAT(with_eos(BytesForTests(), true), ElementsAre('a', 'b', 256, 'c', 256));
  EXPECT_EQ(last.documents, 2);
  EXPECT_EQ(last.tokens, 5);
  EXPECT_EQ(last.text_bytes, 3);
  EXPECT_EQ(last.finished_bytes, last.total_bytes);
  EXPECT_EQ(last.total_bytes, 5);
  EXPECT_THAT(with_eos(BytesForTests(), false), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(with_eos(BytesForTests(0, false), true), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(with_eos(SurroundedBytes(), true), ElementsAre(1, 'a', 'b', 2, 256, 1, 'c', 2, 256)) << "one eos each";
}

TEST(TokenizeCorpus, SaysThatDocumentsHaveNoEnd) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "ab");
  const auto told = [&](const Tokenizer& tokenizer, bool append_eos) {
    std::string text;
    tokenize_corpus(
        {{.path = folder / "a.txt"}},
        tokenizer,
        folder / "a.tokens",
        {.append_eos = append_eos, .inform = [&](const std::string& said) { text += said; }});
    return text;
  };
  EXPECT_THAT(told(BytesForTests(0, false), true), HasSubstr("names no eos_token"));
  EXPECT_EQ(told(BytesForTests(0, false), false), "");
  EXPECT_EQ(told(BytesForTests(), true), "");
}

TEST(TokenizeCorpus, AnErrorInTheTextLeavesNoFile) {
  const TemporaryFolder folder;
  write_file(folder / "in/a.txt", "fine");
  write_file(folder / "in/b.txt", "\xFF");
  EXPECT_THAT(
      usage_error_of([&] { tokenize_corpus({{.path = folder / "in"}}, BytesForTests(), folder / "out/a.tokens"); }),
      HasSubstr("b.txt:1: not valid UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

TEST(TokenizeCorpus, TokenizersHaveDifferentFingerprints) {
  EXPECT_EQ(tokenizer_fingerprint(BytesForTests()), tokenizer_fingerprint(BytesForTests()));
  EXPECT_NE(tokenizer_fingerprint(BytesForTests()), tokenizer_fingerprint(BytesForTests(1)));
  EXPECT_NE(tokenizer_fingerprint(BytesForTests()), tokenizer_fingerprint(BytesForTests(0, false)));
}

TEST(TokenizeCorpus, AFoldersOtherTokenizerIsFound) {
  const auto qwen3 = repository("test/data/tokenizer/qwen3");
  const auto chat = repository("recipe/data/chat_tokenizer");
  EXPECT_FALSE(has_other_tokenizer(chat, *load_tokenizer(chat.string())));
  EXPECT_TRUE(has_other_tokenizer(chat, *load_tokenizer(qwen3.string())));
  EXPECT_TRUE(has_other_tokenizer(chat, BytesForTests()));
  const TemporaryFolder folder;
  EXPECT_FALSE(has_other_tokenizer(folder.path(), BytesForTests())) << "it has none";
  write_file(folder / "tokenizer.json", "{");
  EXPECT_FALSE(has_other_tokenizer(folder.path(), BytesForTests())) << "it cannot be read";
}

std::function<std::optional<int>()> count_to(int end) {
  return [i = 0, end]() mutable { return i < end ? std::optional(i++) : std::nullopt; };
}

TEST(OrderedPipeline, KeepsTheOrderWhenLaterWorkIsFaster) {
  for (const int64_t threads : {0, 1, 4}) {
    OrderedPipeline<int, int> pipeline(threads, 3, count_to(60), [](int&& i) {
      std::this_thread::sleep_for(std::chrono::microseconds((i * 7919) % 13 * 100));
      return i * i;
    });
    for (int i = 0; i < 60; ++i) {
      ASSERT_EQ(pipeline.next(), i * i);
    }
    EXPECT_EQ(pipeline.next(), std::nullopt);
    EXPECT_EQ(pipeline.next(), std::nullopt);
  }
}

TEST(OrderedPipeline, RunsNoFurtherAheadThanItsDepth) {
  std::atomic<int> started = 0;
  OrderedPipeline<int, int> pipeline(2, 5, count_to(1000), [&](int&& i) {
    ++started;
    return i;
  });
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_LE(started, i + 5);
    ASSERT_EQ(pipeline.next(), i);
  }
}

TEST(OrderedPipeline, ErrorsAreThrownInOrderAndPersist) {
  for (const int64_t threads : {0, 3}) {
    OrderedPipeline<int, int> in_work(threads, 4, count_to(100), [](int&& i) {
      require(i != 5, "work {}", i);
      return i;
    });
    OrderedPipeline<int, int> in_take(
        threads,
        4,
        [i = 0]() mutable -> std::optional<int> {
          require(i != 5, "take {}", i);
          return i++;
        },
        [](int&& i) { return i; });
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(in_work.next(), i);
      ASSERT_EQ(in_take.next(), i);
    }
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(usage_error_of([&] { in_work.next(); }), "work 5");
      EXPECT_EQ(usage_error_of([&] { in_take.next(); }), "take 5");
    }
  }
}

}  // namespace
}  // namespace lehr::data
