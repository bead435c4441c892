// Pairs of texts: reading, padding, and the shares of ranks and micro-batches.
#include "lehr/data/pairs.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

std::shared_ptr<const PairsDataset> open(const std::filesystem::path& path, PairsOptions options = {}) {
  options.max_length = options.max_length > 0 ? options.max_length : 512;
  return std::make_shared<PairsDataset>(path, BytesForTests(), options);
}

/// Pair n is the texts "an..." and "bn...", of different lengths.
std::shared_ptr<const PairsDataset> numbered(const TemporaryFolder& folder, int64_t count) {
  std::string lines;
  for (int64_t n = 0; n < count; ++n) {
    const std::string more(static_cast<size_t>(n % 5), '.');
    lines += "{\"anchor\": \"a" + std::to_string(n) + more + "\", \"positive\": \"b" + std::to_string(n) + "\"}\n";
  }
  return open(write_file(folder / "pairs.jsonl", lines));
}

TEST(Pairs, ReadTheirTextsFromJsonLinesOfAnyKeysAndOrder) {
  const TemporaryFolder folder;
  const auto two = open(write_file(
      folder / "a.jsonl",
      "{\"anchor\": \"who?\", \"positive\": \"me\"}\r\n\n{\"positive\": \"x\", \"anchor\": \"y\"}\n"));
  ASSERT_EQ(two->size(), 2);
  EXPECT_EQ(two->example(0), (PairsExample{BytesForTests().encode("who?"), BytesForTests().encode("me")}));
  EXPECT_EQ(two->example(1), (PairsExample{BytesForTests().encode("y"), BytesForTests().encode("x")}));
  // A file is JSON lines whatever its name is.
  const auto three = open(
      write_file(folder / "a.txt", "{\"query\": \"q\", \"answer\": \"pp\", \"hard\": \"n\", \"id\": 7}\n"),
      {.max_length = 1, .anchor_key = "query", .positive_key = "answer", .negative_key = "hard"});
  ASSERT_EQ(three->size(), 1);
  EXPECT_EQ(
      three->example(0),
      (PairsExample{BytesForTests().encode("q"), BytesForTests().encode("p"), BytesForTests().encode("n")}));
}

TEST(Pairs, SpecialTokensAreAroundEachText) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.jsonl", R"({"anchor": "a", "positive": "bc"})");
  const PairsDataset dataset(path, SurroundedBytes(), {.max_length = 8});
  EXPECT_EQ(dataset.example(0), (PairsExample{{1, 'a', 2, 256}, {1, 'b', 'c', 2, 256}}));
}

TEST(Pairs, BadLinesAreNamedByFileAndLine) {
  const TemporaryFolder folder;
  const auto error_for = [&](const std::string& content, const std::string& negative_key = "") {
    const auto path = write_file(folder / "a.jsonl", content);
    return usage_error_of([&] { open(path, {.negative_key = negative_key}); });
  };
  const std::string good = "{\"anchor\": \"a\", \"positive\": \"b\"}\n";
  EXPECT_THAT(
      error_for(good + "{\"anchor\": \"a\"}\n"), HasSubstr("a.jsonl:2: expected an object with a text under the"));
  EXPECT_THAT(error_for(good + "{\"anchor\": \"a\"}\n"), HasSubstr("\"positive\""));
  EXPECT_THAT(error_for(good, "hard"), HasSubstr("a.jsonl:1: expected an object with a text under the key \"hard\""));
  EXPECT_THAT(
      error_for("{\"anchor\": \"\", \"positive\": \"b\"}\n"),
      HasSubstr("a.jsonl:1: the text under \"anchor\" is empty"));
  EXPECT_THAT(error_for("[\"a\", \"b\"]\n"), HasSubstr("a.jsonl:1: expected an object"));
  EXPECT_THAT(error_for(good + "who? me\n"), HasSubstr("a.jsonl:2: not valid JSON"));
  EXPECT_THAT(error_for("{\"anchor\": \"caf\xE9\", \"positive\": \"b\"}\n"), HasSubstr("a.jsonl:1: not valid UTF-8"));
  EXPECT_THAT(error_for(""), HasSubstr("contains no pair of texts"));
}

TEST(Pairs, OfACsvAreRefusedWithTheWayToConvertIt) {
  const TemporaryFolder folder;
  const auto error_for = [&](const char* name) {
    const auto path = write_file(folder / name, "anchor,positive\nwho?,me\n");
    return usage_error_of([&] { open(path); });
  };
  for (const char* name : {"a.b.csv", "a.b.csv.gz"}) {
    EXPECT_THAT(
        error_for(name),
        HasSubstr(
            std::string(name) +
            ": .csv files are not read; expected JSON lines (.jsonl) or tables (.parquet, .arrow). "
            "Convert the file, for example with pandas: pandas.read_csv(\"" +
            name + "\").to_json(\"a.b.jsonl\", orient=\"records\", lines=True)"));
  }
  EXPECT_THAT(error_for("a.tsv"), HasSubstr("a.tsv:1: not valid JSON"));
  EXPECT_THAT(error_for("a.tsv"), HasSubstr("; expected one JSON object per line, or a table (.parquet, .arrow)"));
}

TEST(Pairs, HalfASurrogatePairIsReplaced) {
  const TemporaryFolder folder;
  const auto pairs = open(write_file(folder / "a.jsonl", "{\"anchor\": \"a\\ud83d\", \"positive\": \"b\"}\n"));
  EXPECT_EQ(pairs->example(0).front(), BytesForTests().encode("a\xEF\xBF\xBD"));
  EXPECT_THAT(pairs->lone_surrogates().report(), HasSubstr("a.jsonl:1: a text with half of a surrogate pair"));
}

TEST(Pairs, AreConsecutiveSequencesWhoseLastTokenIsPooled) {
  const TemporaryFolder folder;
  const auto dataset = numbered(folder, 7);
  PairsLoader loader(
      dataset, {.shuffle = false, .repeat = false}, {.global_batch_size = 4, .num_rows = 4, .drop_last = false});
  int64_t pair = 0;
  while (const auto batch = loader.next()) {
    const int64_t width = batch->input_ids.size(1);
    ASSERT_EQ(batch->input_ids.size(0), 8);
    EXPECT_EQ(batch->attention_mask.sum(1).max().item<int64_t>(), width);
    EXPECT_TRUE(batch->pooling_mask.sum(1).eq(1).all().item<bool>()) << "one embedding per sequence";
    for (int64_t row = 0; row < 8; ++row) {
      const at::Tensor ids = batch->input_ids[row];
      if (pair >= 7) {
        EXPECT_FALSE(batch->valid[row].item<bool>());
        EXPECT_FALSE(batch->attention_mask[row].any().item<bool>());
        continue;
      }
      EXPECT_TRUE(batch->valid[row].item<bool>());
      const auto& wanted = dataset->example(pair)[static_cast<size_t>(row % 2)];
      const auto length = static_cast<int64_t>(wanted.size());
      ASSERT_TRUE(batch->attention_mask[row].equal(at::arange(width) < length));
      ASSERT_TRUE(batch->pooling_mask[row].equal(at::arange(width) == length - 1));
      EXPECT_TRUE((ids.slice(0, length) == 256).all().item<bool>()) << "padded with eos";
      for (int64_t t = 0; t < length; ++t) {
        EXPECT_EQ(ids[t].item<int64_t>(), wanted[static_cast<size_t>(t)]);
      }
      pair += row % 2;
    }
  }
  EXPECT_EQ(pair, 7);
}

// Otherwise the negatives of a micro-batch would depend on the number of ranks.
TEST(Pairs, OfAMicrobatchOfAllRanksAreThoseOfOneDevice) {
  const TemporaryFolder folder;
  const auto dataset = numbered(folder, 50);
  const int64_t pairs = 12, microbatch = 2, ranks = 2;  // three micro-batches per rank
  PairsLoader whole(dataset, {.seed = 3}, batch_plan_of_rank(pairs, 0, 1, 24), microbatch * ranks);
  PairsLoader first(dataset, {.seed = 3}, batch_plan_of_rank(pairs, 0, ranks, 24), microbatch, {.num_workers = 0});
  PairsLoader second(dataset, {.seed = 3}, batch_plan_of_rank(pairs, 1, ranks, 24), microbatch, {.num_workers = 3});
  for (int step = 0; step < 10; ++step) {
    const auto wanted = whole.next(), a = first.next(), b = second.next();
    for (int64_t m = 0; m < 3; ++m) {
      const auto rows = [&](const at::Tensor& of_rank) { return of_rank.narrow(0, m * 4, 4); };
      ASSERT_TRUE(at::cat({rows(a->input_ids), rows(b->input_ids)}).equal(wanted->input_ids.narrow(0, m * 8, 8)));
      ASSERT_TRUE(
          at::cat({rows(a->pooling_mask), rows(b->pooling_mask)}).equal(wanted->pooling_mask.narrow(0, m * 8, 8)));
    }
  }
  EXPECT_THAT(
      usage_error_of([&] { PairsLoader(dataset, {}, batch_plan_of_rank(12, 0, 2), 4); }),
      HasSubstr("examples [0, 6) of a global batch of 12 are not a share of micro-batches of 4"));
}

}  // namespace
}  // namespace lehr::data
