// Labelled words: reading, tokens of words, padding.
#include "lehr/data/token_classification.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lehr/data/packing.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

std::shared_ptr<const TokenClassificationDataset> open(
    const std::filesystem::path& path, int64_t max_length = 512, int64_t pad_to_multiple_of = 1) {
  return std::make_shared<TokenClassificationDataset>(
      path,
      BytesForTests(),
      TokenClassificationOptions{.max_length = max_length, .pad_to_multiple_of = pad_to_multiple_of});
}

std::filesystem::path names() {
  return repository("recipe/data/names.jsonl");
}

// The ids of tokenizers 0.23 with ByteLevel(add_prefix_space=True), for words that are given with is_pretokenized=True.
TEST(TokenClassification, TokenizesWordsLikeTransformersWithAPrefixSpace) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer(repository("recipe/data/chat_tokenizer").string());
  const auto path = write_file(
      folder / "a.jsonl",
      R"({"tokens": ["EU", "rejects", "German", "don't", "", "café", "."], "ner_tags": [3, 0, 7, 1, 6, 2, 0]})");
  const TokenClassificationDataset dataset(path, *tokenizer, {.max_length = 64});
  ASSERT_EQ(dataset.size(), 1);
  EXPECT_THAT(
      dataset.example(0).ids,
      testing::ElementsAre(617, 52, 372, 520, 82, 765, 304, 269, 6, 83, 271, 64, 69, 127, 102, 220, 13));
  constexpr int64_t kNo = kNoLabel;
  EXPECT_THAT(
      dataset.example(0).labels,
      testing::ElementsAre(3, kNo, 0, kNo, kNo, 7, 1, kNo, kNo, kNo, 2, kNo, kNo, kNo, kNo, 0, kNo))
      << "the first token of each word";
  EXPECT_EQ(dataset.num_labels(), 8);
}

TEST(TokenClassification, AWordThatBeginsWithASpaceGetsNoOther) {
  EXPECT_EQ(BytesForTests().encode_word("a"), BytesForTests().encode(" a"));
  EXPECT_EQ(BytesForTests().encode_word(" a"), BytesForTests().encode(" a"));
  EXPECT_TRUE(BytesForTests().encode_word("").empty());
}

TEST(TokenClassification, SpecialTokensAreAroundATextAndHaveNoLabel) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.jsonl", R"({"tokens": ["ab", "c"], "ner_tags": [0, 4]})");
  const TokenClassificationDataset whole(path, SurroundedBytes(), {.max_length = 16});
  EXPECT_THAT(whole.example(0).ids, testing::ElementsAre(1, ' ', 'a', 'b', ' ', 'c', 2, 256));
  EXPECT_THAT(
      whole.example(0).labels, testing::ElementsAre(kNoLabel, 0, kNoLabel, kNoLabel, 4, kNoLabel, kNoLabel, kNoLabel));
  const TokenClassificationDataset cut(path, SurroundedBytes(), {.max_length = 5});
  EXPECT_THAT(cut.example(0).ids, testing::ElementsAre(1, ' ', 'a', 2, 256));
  EXPECT_THAT(cut.example(0).labels, testing::ElementsAre(kNoLabel, 0, kNoLabel, kNoLabel, kNoLabel));
}

TEST(TokenClassification, ReadsOtherKeysAndTruncates) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.json",
      "{\"tags\": [0, 4], \"words\": [\"ab\", \"c\\ud83d\"]}\r\n\n{\"words\": [\"d\"], \"tags\": [1]}\n");
  const TokenClassificationDataset dataset(
      path, BytesForTests(), {.max_length = 4, .tokens_key = "words", .tags_key = "tags"});
  ASSERT_EQ(dataset.size(), 2);
  EXPECT_EQ(dataset.example(0).ids, BytesForTests().encode(" ab "));
  EXPECT_THAT(dataset.example(0).labels, testing::ElementsAre(0, kNoLabel, kNoLabel, 4));
  EXPECT_EQ(dataset.example(1).ids, BytesForTests().encode(" d"));
  EXPECT_THAT(dataset.lone_surrogates().report(), HasSubstr("a.json:1: a text with half of a surrogate pair"));
}

TEST(TokenClassification, BadRowsAreNamedByFileLineAndKey) {
  const TemporaryFolder folder;
  const std::string good = "{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [0, 1]}\n";
  const auto error_for = [&](const std::string& line) {
    const auto path = write_file(folder / "a.jsonl", good + line);
    return usage_error_of([&] { open(path); });
  };
  EXPECT_THAT(
      error_for("{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [0]}\n"),
      HasSubstr("a.jsonl:2: ner_tags has 1 labels for the 2 words of tokens; expected one for each word"));
  EXPECT_THAT(
      error_for("{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [0, -1]}\n"),
      HasSubstr("a.jsonl:2: ner_tags[1]: the label is -1, expected labels 0, 1, ..."));
  EXPECT_THAT(
      error_for("{\"tokens\": [], \"ner_tags\": []}\n"),
      HasSubstr("a.jsonl:2: tokens: the list is empty; remove the row"));
  EXPECT_THAT(
      error_for("{\"tokens\": [\"\"], \"ner_tags\": [1]}\n"),
      HasSubstr("a.jsonl:2: tokens: all words are empty; remove the row"));
  EXPECT_THAT(
      error_for("{\"tokens\": [\"a\", 3], \"ner_tags\": [0, 1]}\n"),
      HasSubstr("a.jsonl:2: tokens[1]: expected a word, a string"));
  EXPECT_THAT(
      error_for("{\"tokens\": [\"a\"], \"ner_tags\": [\"B-PER\"]}\n"),
      HasSubstr("a.jsonl:2: ner_tags[0]: expected an integer, the number of a label"));
  EXPECT_THAT(
      error_for("{\"tokens\": \"a b\", \"ner_tags\": [0, 1]}\n"),
      HasSubstr("a.jsonl:2: expected an object with a list of words under the key \"tokens\""));
  EXPECT_THAT(
      error_for("{\"tokens\": [\"a\"]}\n"),
      HasSubstr("a.jsonl:2: expected an object with a list of labels under the key \"ner_tags\""));
  EXPECT_THAT(error_for("a b\n"), HasSubstr("a.jsonl:2: not valid JSON"));
  EXPECT_THAT(error_for("{\"tokens\": [\"caf\xE9\"], \"ner_tags\": [0]}\n"), HasSubstr("a.jsonl:2: not valid UTF-8"));
  const auto empty = write_file(folder / "a.jsonl", "\n");
  EXPECT_THAT(usage_error_of([&] { open(empty); }), HasSubstr("contains no labelled words"));
}

TEST(TokenClassification, BatchesHoldEveryTextOnceAndPaddingHasNoLabel) {
  const auto dataset = open(names(), 40, 8);
  TokenClassificationLoader loader(
      dataset, {.seed = 1, .repeat = false}, {.global_batch_size = 16, .num_rows = 16, .drop_last = false});
  int64_t rows = 0, labels = 0;
  while (const auto batch = loader.next()) {
    const int64_t width = batch->input_ids.size(1);
    EXPECT_TRUE(width % 8 == 0 && width <= 40) << width;
    EXPECT_GT(batch->attention_mask.sum(1).max().item<int64_t>(), width - 8);
    EXPECT_TRUE(batch->position_ids.equal(at::arange(width).expand({16, width})));
    EXPECT_FALSE(batch->labels.ne(kNoLabel).logical_and(batch->attention_mask.logical_not()).any().item<bool>());
    EXPECT_TRUE(batch->input_ids.eq(256).equal(batch->attention_mask.logical_not())) << "padded with eos";
    rows += batch->attention_mask.any(1).sum().item<int64_t>();
    labels += batch->labels.ne(kNoLabel).sum().item<int64_t>();
  }
  EXPECT_EQ(rows, dataset->size());
  int64_t expected = 0;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    const auto& of_one = dataset->example(i).labels;
    expected += std::count_if(of_one.begin(), of_one.end(), [](int64_t label) { return label != kNoLabel; });
  }
  EXPECT_EQ(labels, expected);
}

TEST(TokenClassification, RanksSeeTheSameWidthAndShareTheBatch) {
  const auto dataset = open(names());
  TokenClassificationLoader whole(dataset, {.seed = 2}, batch_plan_of_rank(6, 0, 1, 18));
  TokenClassificationLoader first(dataset, {.seed = 2}, batch_plan_of_rank(6, 0, 2, 18), {.num_workers = 0});
  TokenClassificationLoader second(dataset, {.seed = 2}, batch_plan_of_rank(6, 1, 2, 18), {.num_workers = 3});
  for (int step = 0; step < 30; ++step) {
    const auto a = first.next(), b = second.next();
    const auto expected = whole.next();
    ASSERT_TRUE(at::cat({a->input_ids, b->input_ids}).equal(expected->input_ids));
    ASSERT_TRUE(at::cat({a->labels, b->labels}).equal(expected->labels));
    ASSERT_TRUE(at::cat({a->attention_mask, b->attention_mask}).equal(expected->attention_mask));
  }
}

TEST(TokenClassification, FingerprintsTellDataAndOrdersApart) {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& tags, uint64_t seed) {
    const auto path = write_file(folder / "a.jsonl", "{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [" + tags + "]}\n");
    return open(path)->fingerprint({.seed = seed});
  };
  EXPECT_EQ(of("0, 1", 1), of("0, 1", 1));
  EXPECT_NE(of("0, 1", 1), of("0, 2", 1));
  EXPECT_NE(of("0, 1", 1), of("0, 1", 2));
}

}  // namespace
}  // namespace lehr::data
