// Labelled texts: reading, padding, pooling.
#include "lehr/data/classification.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

std::shared_ptr<const ClassificationDataset> open(
    const std::filesystem::path& path, int64_t max_length = 512, int64_t pad_to_multiple_of = 1) {
  return std::make_shared<ClassificationDataset>(
      path, BytesForTests(), ClassificationOptions{.max_length = max_length, .pad_to_multiple_of = pad_to_multiple_of});
}

TEST(Classification, ReadsLinesAndJson) {
  const TemporaryFolder folder;
  const auto lines = open(write_file(folder / "a.txt", "1 good film\r\n0\tbad\n\n"));
  const auto json = open(
      write_file(folder / "a.jsonl", "{\"text\": \"good film\", \"label\": 1}\n{\"label\": 0, \"text\": \"bad\"}\n"));
  ASSERT_EQ(lines->size(), 2);
  ASSERT_EQ(json->size(), 2);
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(lines->example(i).ids, BytesForTests().encode(i == 0 ? "good film" : "bad"));
    EXPECT_EQ(lines->example(i).label, 1 - i);
    EXPECT_EQ(json->example(i).ids, lines->example(i).ids);
    EXPECT_EQ(json->example(i).label, lines->example(i).label);
  }
  EXPECT_EQ(lines->num_labels(), 2);
}

TEST(Classification, SpecialTokensAreAroundEachTextAlsoIfItIsCut) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.txt",
      "\xEF\xBB\xBF"
      "1 good\n0 b\n");
  const ClassificationDataset dataset(path, SurroundedBytes(), {.max_length = 5});
  EXPECT_THAT(dataset.example(0).ids, testing::ElementsAre(1, 'g', 'o', 2, 256));
  EXPECT_THAT(dataset.example(1).ids, testing::ElementsAre(1, 'b', 2, 256));
  EXPECT_THAT(
      usage_error_of([&] { ClassificationDataset(path, SurroundedBytes(), {.max_length = 3}); }),
      HasSubstr("a.txt:1: max_length: expected more than the 3 special tokens around a text, found 3"));
}

/// As transformers' GenericForSequenceClassification.
TEST(Classification, TheLastTokenThatIsNotTheModelsPaddingIsPooled) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.txt", "1 good\n0 b\n");
  const auto pooled = [&](std::optional<int64_t> pad_token_id) {
    const auto dataset = std::make_shared<const ClassificationDataset>(
        path, SurroundedBytes(), ClassificationOptions{.max_length = 9, .pad_token_id = pad_token_id});
    ClassificationLoader loader(
        dataset, {.shuffle = false, .repeat = false}, {.global_batch_size = 2, .num_rows = 2, .drop_last = false});
    const at::Tensor columns = loader.next()->pooling_mask.nonzero().select(1, 1);
    return std::vector<int64_t>(columns.data_ptr<int64_t>(), columns.data_ptr<int64_t>() + columns.numel());
  };
  // 1 g o o d 2 256, and 1 b 2 256
  EXPECT_THAT(pooled(std::nullopt), testing::ElementsAre(6, 3));
  EXPECT_THAT(pooled(256), testing::ElementsAre(5, 2));
  EXPECT_THAT(pooled(2), testing::ElementsAre(6, 3));
}

TEST(Classification, AnyOtherTokenOrLabelGivesAnotherFingerprint) {
  const TemporaryFolder folder;
  std::set<uint64_t> fingerprints;
  for (const char* text :
       {"1 good film\n0 bad\n", "1 good fili\n0 bad\n", "1 good film\n1 bad\n", "1 good film\n0 bid\n"}) {
    fingerprints.insert(open(write_file(folder / "a.txt", text))->fingerprint({}));
  }
  EXPECT_EQ(fingerprints.size(), 4U);
}

TEST(Classification, HalfASurrogatePairIsReplaced) {
  const TemporaryFolder folder;
  const auto json = open(write_file(folder / "a.jsonl", "{\"text\": \"a\\ud83d\", \"label\": 0}\n"));
  EXPECT_EQ(json->example(0).ids, BytesForTests().encode("a\xEF\xBF\xBD"));
  EXPECT_THAT(json->lone_surrogates().report(), HasSubstr("a.jsonl:1: a text with half of a surrogate pair"));
}

TEST(Classification, BadLinesAreNamedByFileAndLine) {
  const TemporaryFolder folder;
  const auto error_for = [&](const std::string& name, const std::string& content) {
    const auto path = write_file(folder / name, content);
    return usage_error_of([&] { open(path); });
  };
  EXPECT_THAT(error_for("a.txt", "1 a\ngood film\n"), HasSubstr("a.txt:2: expected a label, a space and a text"));
  EXPECT_THAT(error_for("a.txt", "1x a\n"), HasSubstr("a.txt:1: expected a label"));
  EXPECT_THAT(error_for("a.txt", "1 a\n0 \n"), HasSubstr("a.txt:2: the text is empty"));
  EXPECT_THAT(error_for("a.txt", "-1 a\n"), HasSubstr("a.txt:1: the label is -1"));
  EXPECT_THAT(
      error_for("a.txt", "1 a\n9223372036854775807 b\n"),
      HasSubstr("a.txt:2: the label is 9223372036854775807, expected labels 0, 1, ..., below 1000000"));
  EXPECT_THAT(
      error_for("a.jsonl", "{\"text\": \"a\", \"label\": 1000000}\n"), HasSubstr("a.jsonl:1: the label is 1000000"));
  EXPECT_THAT(error_for("a.txt", "1 a\n1 caf\xE9\n"), HasSubstr("a.txt:2: not valid UTF-8"));
  EXPECT_THAT(error_for("a.txt", ""), HasSubstr("contains no labelled text"));
  EXPECT_THAT(error_for("a.jsonl", "{\"text\": \"a\"}\n"), HasSubstr("a.jsonl:1: expected an integer under the key"));
  EXPECT_THAT(error_for("a.jsonl", "{\"label\": 1}\n"), HasSubstr("a.jsonl:1: expected an object with a text"));
}

TEST(Classification, ACsvIsRefused) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.csv", "label,text\n1,good\n");
  EXPECT_THAT(usage_error_of([&] { open(path); }), HasSubstr("a.csv: .csv files are not read; expected JSON lines"));
}

TEST(Classification, MasksMarkTheTextAndItsLastToken) {
  const auto dataset = open(repository("test/data/data/sst2_sample.txt"), 100);
  ClassificationLoader loader(
      dataset, {.seed = 1, .repeat = false}, {.global_batch_size = 8, .num_rows = 8, .drop_last = false});
  std::multiset<std::vector<int64_t>> seen;
  int64_t padding_rows = 0;
  while (const auto batch = loader.next()) {
    const int64_t width = batch->input_ids.size(1);
    EXPECT_LE(width, 100);
    EXPECT_EQ(batch->attention_mask.sum(1).max().item<int64_t>(), width);
    for (int64_t row = 0; row < 8; ++row) {
      const auto mask = batch->attention_mask[row];
      const int64_t length = mask.sum().item<int64_t>();
      ASSERT_TRUE(mask.equal(at::arange(width) < length));
      if (length == 0) {
        EXPECT_EQ(batch->labels[row].item<int64_t>(), -100);
        EXPECT_FALSE(batch->pooling_mask[row].any().item<bool>());
        ++padding_rows;
        continue;
      }
      ASSERT_TRUE(batch->pooling_mask[row].equal(at::arange(width) == length - 1));
      ASSERT_TRUE((batch->input_ids[row].slice(0, length) == 256).all().item<bool>()) << "padded with eos";
      const int64_t* ids = batch->input_ids[row].data_ptr<int64_t>();
      std::vector<int64_t> content(ids, ids + length);
      content.push_back(batch->labels[row].item<int64_t>());
      seen.insert(content);
    }
  }
  EXPECT_EQ(padding_rows, 4);  // 60 examples in batches of 8
  std::multiset<std::vector<int64_t>> expected;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    std::vector<int64_t> content(dataset->example(i).ids.begin(), dataset->example(i).ids.end());
    content.push_back(dataset->example(i).label);
    expected.insert(content);
  }
  EXPECT_EQ(seen, expected);
}

TEST(Classification, BatchesAreAsWideAsAMultipleOrTheMaximumLength) {
  const TemporaryFolder folder;
  const auto width_of = [&](const std::string& text, int64_t multiple) {
    const auto dataset = open(write_file(folder / "rows.txt", "1 a\n0 " + text + "\n"), 10, multiple);
    ClassificationLoader loader(dataset, {.seed = 1}, {.global_batch_size = 2, .num_rows = 2});
    return loader.next()->input_ids.size(1);
  };
  EXPECT_EQ(width_of("abcde", 1), 5);
  EXPECT_EQ(width_of("abcde", 4), 8);
  EXPECT_EQ(width_of("abcdefgh", 4), 8);
  EXPECT_EQ(width_of("abcdefghi", 4), 10);
}

TEST(Classification, RanksSeeTheSameWidthAndShareTheBatch) {
  const auto dataset = open(repository("test/data/data/sst2_sample.txt"));
  ClassificationLoader whole(dataset, {.seed = 2}, batch_plan_of_rank(6, 0, 1, 18));
  ClassificationLoader first(dataset, {.seed = 2}, batch_plan_of_rank(6, 0, 2, 18), {.num_workers = 0});
  ClassificationLoader second(dataset, {.seed = 2}, batch_plan_of_rank(6, 1, 2, 18), {.num_workers = 3});
  for (int step = 0; step < 30; ++step) {
    const auto a = first.next(), b = second.next();
    const auto expected = whole.next();
    ASSERT_TRUE(at::cat({a->input_ids, b->input_ids}).equal(expected->input_ids));
    ASSERT_TRUE(at::cat({a->labels, b->labels}).equal(expected->labels));
  }
}

}  // namespace
}  // namespace lehr::data
