// Packed sequences compared with a naive reading of the same documents.
#include "lehr/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "lehr/data/dataset.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Ids are unique numbers, so that a token identifies its place in the corpus.
struct Corpus {
  std::vector<std::vector<int32_t>> documents;
  std::map<int64_t, int64_t> successor;  // the next token in the same document, if there is one
  std::map<int64_t, int64_t> document_of;
  int64_t num_tokens = 0;
};

Corpus random_corpus(unsigned seed, int count, unsigned longest) {
  std::mt19937 random(seed);
  Corpus corpus;
  for (int i = 0; i < count; ++i) {
    auto& document = corpus.documents.emplace_back();
    for (unsigned left = random() % (longest + 1); left > 0; --left) {
      const auto id = static_cast<int32_t>(corpus.num_tokens++);
      if (!document.empty()) {
        corpus.successor[document.back()] = id;
      }
      corpus.document_of[id] = i;
      document.push_back(id);
    }
  }
  return corpus;
}

Sample row_of(const PackedRows& rows, int64_t row) {
  const auto length = static_cast<size_t>(rows.seq_len());
  Sample sample{
      std::vector<int64_t>(length),
      std::vector<int64_t>(length),
      std::vector<int64_t>(length),
      std::vector<int64_t>(length)};
  rows.fill(
      row, {sample.input_ids.data(), sample.labels.data(), sample.position_ids.data(), sample.document_ids.data()});
  return sample;
}

/// The properties that hold for both kinds of packing.
void check_laws(const Corpus& corpus, const PackedRows& rows) {
  std::map<int64_t, int64_t> seen;  // token -> label
  for (int64_t r = 0; r < rows.size(); ++r) {
    const Sample row = row_of(rows, r);
    for (int64_t t = 0; t < rows.seq_len(); ++t) {
      const int64_t id = row.input_ids[t];
      if (row.document_ids[t] == kNoDocument) {
        ASSERT_EQ(id, 999999);
        ASSERT_EQ(row.labels[t], kNoLabel);
        ASSERT_TRUE(t + 1 == rows.seq_len() || row.document_ids[t + 1] == kNoDocument) << "padding stands at the end";
        continue;
      }
      ASSERT_TRUE(seen.emplace(id, row.labels[t]).second) << "token " << id << " comes twice";
      const bool starts = t == 0 || corpus.document_of.at(id) != corpus.document_of.at(row.input_ids[t - 1]) ||
                          row.document_ids[t] != row.document_ids[t - 1];
      ASSERT_EQ(row.position_ids[t], starts ? 0 : row.position_ids[t - 1] + 1);
      ASSERT_EQ(row.document_ids[t], t == 0 ? 0 : row.document_ids[t - 1] + (starts ? 1 : 0));
      ASSERT_TRUE(starts || row.labels[t - 1] == id) << "within a piece the label is the next input";
    }
  }
  for (const auto& [id, next] : corpus.successor) {
    ASSERT_TRUE(seen.count(id)) << "token " << id << " is lost";
    ASSERT_EQ(seen.at(id), next);
  }
  for (const auto& [id, label] : seen) {
    ASSERT_TRUE(label != kNoLabel || corpus.successor.count(id) == 0);
    ASSERT_TRUE(label == kNoLabel || corpus.successor.at(id) == label) << "no label crosses documents";
  }
}

TEST(Packing, EveryPairOfNeighboursIsALabelOnceAndNoneCrossesDocuments) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const unsigned longest = seed % 3 == 0 ? 3 : seed % 3 == 1 ? 20 : 100;
    const Corpus corpus = random_corpus(seed, 2 + static_cast<int>(seed), longest);
    if (corpus.successor.empty()) {
      continue;
    }
    for (const int64_t seq_len : {1, 2, 7, 16, 33}) {
      for (const Packing packing : {Packing::concat, Packing::whole}) {
        SCOPED_TRACE(fmt::format("seed {}, seq_len {}, packing {}", seed, seq_len, static_cast<int>(packing)));
        check_laws(
            corpus,
            PackedRows(
                stream_of(corpus.documents, 1000000), {.seq_len = seq_len, .packing = packing, .pad_id = 999999}));
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(Packing, ConcatCutsTheStreamIntoSequences) {
  const PackedRows rows(stream_of({{1, 2, 3, 4, 5}, {6, 7}, {8, 9, 10}}), {.seq_len = 4});
  ASSERT_EQ(rows.size(), 3);
  const Sample first = row_of(rows, 0), second = row_of(rows, 1), third = row_of(rows, 2);
  EXPECT_THAT(first.input_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(first.labels, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(second.input_ids, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(second.labels, ElementsAre(-100, 7, -100, 9));
  EXPECT_THAT(second.position_ids, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(second.document_ids, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(third.input_ids, ElementsAre(9, 10, 0, 0));
  EXPECT_THAT(third.labels, ElementsAre(10, -100, -100, -100));
  EXPECT_THAT(third.document_ids, ElementsAre(0, 0, -1, -1));
}

TEST(Packing, WholeKeepsDocumentsTogetherWithLittlePadding) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> documents;
  int64_t tokens = 0;
  for (int i = 0; i < 2000; ++i) {
    documents.emplace_back(2 + random() % 127, i % 1000);
    tokens += static_cast<int64_t>(documents.back().size());
  }
  const PackedRows rows(stream_of(documents), {.seq_len = 128, .packing = Packing::whole});
  EXPECT_LE(rows.size() * 128, tokens * 102 / 100);  // best fit, longest first: under 2 % padding at these lengths
  int64_t pieces = 0;
  for (int64_t r = 0; r < rows.size(); ++r) {
    const Sample row = row_of(rows, r);
    pieces += std::count(row.position_ids.begin(), row.position_ids.end(), 0) -
              std::count(row.document_ids.begin(), row.document_ids.end(), kNoDocument);
  }
  EXPECT_EQ(pieces, 2000) << "no document was cut";
}

TEST(Packing, PacksAHundredThousandDocuments) {
  std::vector<std::vector<int32_t>> documents(100000, std::vector<int32_t>(37, 1));
  const PackedRows rows(stream_of(documents), {.seq_len = 128, .packing = Packing::whole});
  EXPECT_EQ(rows.size(), 33334);  // three documents per sequence
}

TEST(Packing, DataWithoutLabelsIsAnError) {
  for (const Packing packing : {Packing::concat, Packing::whole}) {
    EXPECT_THAT(
        usage_error_of([&] { PackedRows(stream_of({{5}}), {.seq_len = 4, .packing = packing}); }),
        HasSubstr("memory: holds 1 tokens in 1 documents, which leaves nothing to predict"));
    EXPECT_THAT(
        usage_error_of([&] {
          PackedRows(stream_of({{5}, {6}, {7}}), {.seq_len = 4, .packing = packing});
        }),
        HasSubstr("memory: holds 3 tokens in 3 documents, which leaves nothing to predict"));
  }
}

}  // namespace
}  // namespace lehr::data
