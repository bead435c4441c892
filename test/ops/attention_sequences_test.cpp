// The ends of sequences in packed and padded rows.
#include "lehr/ops/attention/attention_sequences.h"

#include <gmock/gmock.h>

#include "lehr/ops/attention/attention.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {
using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor ids(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> all;
  for (const auto& row : rows) {
    all.push_back(at::tensor(row, at::kLong));
  }
  return at::stack(all);
}

at::Tensor visible(const std::vector<std::vector<int64_t>>& rows) {
  return ids(rows).to(at::kBool);
}

std::vector<int32_t> numbers(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kInt);
  const at::Tensor flat = tensor.contiguous().flatten();
  return {flat.data_ptr<int32_t>(), flat.data_ptr<int32_t>() + flat.numel()};
}

TEST(SequenceEnds, AreWhereDocumentsAndPaddingChange) {
  const at::Tensor ends = sequence_ends(ids({{0, 0, 1, 2, 2, -1}, {5, 5, 5, 5, 5, 5}}), {});
  EXPECT_EQ(ends.sizes(), (at::IntArrayRef{2, 4})) << "the greatest number of sequences in a row";
  EXPECT_THAT(numbers(ends), ElementsAre(2, 3, 5, 6, 6, 6, 6, 6));
  EXPECT_THAT(numbers(sequence_ends({}, visible({{1, 1, 0}, {0, 1, 1}, {1, 1, 1}}))), ElementsAre(2, 3, 1, 3, 3, 3));
  EXPECT_THAT(
      numbers(sequence_ends(ids({{0, 0, 0, 1, 1}}), visible({{0, 1, 1, 1, 0}, {1, 1, 1, 1, 1}}))),
      ElementsAre(1, 3, 4, 5, 3, 5, 5, 5))
      << "ids of one row for all";
}

TEST(SequenceEnds, HaveAPowerOfTwoWidth) {
  const auto width = [](int64_t documents) { return sequence_ends(at::arange(documents).unsqueeze(0), {}).size(1); };
  EXPECT_EQ(width(1), 1);
  EXPECT_EQ(width(3), 4);
  EXPECT_EQ(width(4), 4);
  EXPECT_EQ(width(5), 8);
}

TEST(SequenceEnds, AreUndefinedIfADocumentIsInSeveralPieces) {
  EXPECT_FALSE(sequence_ends({}, {}).defined());
  EXPECT_FALSE(sequence_ends(ids({{0, 0, 0}, {0, 1, 0}}), {}).defined()) << "a document in two pieces";
  EXPECT_FALSE(sequence_ends({}, visible({{1, 0, 1}})).defined()) << "a hole";
  EXPECT_FALSE(sequence_ends(ids({{3, 3, 3, 4}}), visible({{1, 0, 1, 1}})).defined()) << "a hole in a document";
  EXPECT_TRUE(sequence_ends(ids({{3, 3, 4, 3}}), visible({{1, 1, 1, 0}})).defined()) << "no hidden token is seen";
}

TEST(SequenceEnds, OnMetaAreThoseOfUnpackedRows) {
  EXPECT_EQ(sequence_ends(ids({{0, 1}, {0, 0}}).to(at::kMeta), {}).sizes(), (at::IntArrayRef{2, 1}));
}

// Ids on a GPU would have no ends; the meta device stands for the GPU here.
TEST(RowMask, KeepsEndsThatWereComputedBeforeTheMove) {
  const at::Tensor documents = ids({{0, 0, 1, 2, 2, -1}});
  const AttentionMask mask = row_mask(documents, {}, at::kCPU);
  EXPECT_THAT(numbers(mask.sequence_ends), ElementsAre(2, 3, 5, 6));
  EXPECT_FALSE(mask.key_padding.defined());
  const AttentionMask moved = row_mask(documents, documents.ge(0), at::kMeta);
  EXPECT_TRUE(moved.document_ids.is_meta() && moved.key_padding.is_meta() && moved.sequence_ends.is_meta());
  EXPECT_EQ(moved.sequence_ends.size(1), 4);
}

TEST(CumulativeLengths, CountOverAllRowsOfTheBatch) {
  const AttentionMask mask = {.document_ids = ids({{0, 0, 1, 2}, {0, 0, 0, 0}})};
  EXPECT_THAT(numbers(*cumulative_lengths_of(mask, 2, 4)), ElementsAre(0, 2, 3, 4, 4, 8, 8, 8, 8));
  const AttentionMask one_row = {.document_ids = ids({{0, 1, 1}})};
  EXPECT_THAT(numbers(*cumulative_lengths_of(one_row, 3, 3)), ElementsAre(0, 1, 3, 4, 6, 7, 9));
  EXPECT_THAT(numbers(cumulative_lengths_of_rows(3, 5, at::kCPU)), ElementsAre(0, 5, 10, 15));
  EXPECT_FALSE(cumulative_lengths_of({}, 2, 4)->defined());
  EXPECT_FALSE(cumulative_lengths_of({.document_ids = ids({{0, 1, 0}})}, 1, 3).has_value());
}

// The ends are given, as for a device that the host cannot read; the ids are never read.
TEST(CumulativeLengths, AreComputedFromTheGivenSequenceEnds) {
  const AttentionMask mask = {
      .document_ids = at::zeros({2, 6}, at::kLong),
      .sequence_ends = at::tensor(std::vector<int32_t>{4, 6, 6, 6}, at::kInt).view({2, 2})};
  EXPECT_THAT(numbers(*cumulative_lengths_of(mask, 2, 6)), ElementsAre(0, 4, 6, 12, 12));
  const AttentionMask prepared = with_cumulative_lengths(mask, 2);
  EXPECT_THAT(numbers(prepared.cumulative_lengths), ElementsAre(0, 4, 6, 12, 12));
  EXPECT_TRUE(cumulative_lengths_of(prepared, 2, 6)->is_same(prepared.cumulative_lengths)) << "made once";
  EXPECT_FALSE(with_cumulative_lengths({}, 2).cumulative_lengths.defined());
}

TEST(CumulativeLengths, RefuseInvalidShapesAndTypes) {
  const at::Tensor x = at::ones({2, 4, 2, 8});
  const auto refused = [&](const AttentionMask& mask) { return error_of([&] { attention(x, x, x, mask); }); };
  EXPECT_THAT(
      refused({.sequence_ends = at::ones({3, 1}, at::kInt)}),
      HasSubstr("attention: expected sequence_ends (B or 1, M) int32 with B = 2, found Int 3x1"));
  EXPECT_THAT(refused({.sequence_ends = at::ones({2, 1}, at::kLong)}), HasSubstr("found Long 2x1"));
  EXPECT_THAT(
      refused({.cumulative_lengths = at::ones({2, 1}, at::kInt)}),
      HasSubstr(
          "attention: expected cumulative_lengths (N + 1) int32, equally many for each of 2 rows, found Int 2x1"));
  EXPECT_THAT(
      refused({.cumulative_lengths = at::arange(4, at::kInt)}),
      HasSubstr("equally many for each of 2 rows, found Int 4"));
}

}  // namespace
}  // namespace lehr::ops::test
