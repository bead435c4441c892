// The FLOPs that attention reports, which are those of `lehr train --profile`: pairs of a query and a key that it sees.
#include <gmock/gmock.h>

#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/attention/attention_sequences.h"

namespace lehr::ops {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;  // of the documents of a sequence
  std::vector<int64_t> padding;  // that follows, for each sequence
  std::optional<int64_t> window;
};

constexpr int64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 16;

// The documents of all sequences, (B, T); those of the padding are negative.
std::vector<std::vector<int64_t>> ids_of(const Case& one) {
  std::vector<std::vector<int64_t>> rows;
  for (const int64_t padding : one.padding) {
    std::vector<int64_t> row;
    for (size_t document = 0; document < one.lengths.size(); ++document) {
      const bool last = document + 1 == one.lengths.size();
      row.insert(
          row.end(), static_cast<size_t>(one.lengths[document] - (last ? padding : 0)), static_cast<int64_t>(document));
    }
    row.insert(row.end(), static_cast<size_t>(padding), -1);
    rows.push_back(row);
  }
  return rows;
}

// The definition, one pair after the other.
double visible_pairs(const Case& one) {
  double pairs = 0;
  for (const auto& row : ids_of(one)) {
    for (size_t query = 0; query < row.size(); ++query) {
      for (size_t key = 0; key <= query; ++key) {
        const bool near = !one.window || static_cast<int64_t>(query - key) < *one.window;
        pairs += near && row[query] == row[key] && row[query] >= 0 ? 1 : 0;
      }
    }
  }
  return pairs;
}

OperationCounts count(const Case& one, at::ScalarType dtype, bool as_documents) {
  const auto rows = ids_of(one);
  std::vector<at::Tensor> stacked;
  for (const auto& row : rows) {
    stacked.push_back(at::tensor(row, at::kLong));
  }
  const at::Tensor ids = at::stack(stacked);  // (B, T)
  AttentionMask mask;
  if (as_documents) {
    mask.document_ids = ids;
  } else {
    mask.key_padding = ids.ge(0);
  }
  const auto made = [&](int64_t heads) {
    return at::randn({ids.size(0), ids.size(1), heads, kHeadDim}, dtype).set_requires_grad(true);
  };
  const at::Tensor q = made(kHeads), k = made(kKeyHeads), v = made(kKeyHeads);
  const OperationMeter meter;
  attention(q, k, v, mask, {.window = one.window}).sum().backward();
  return meter.counts();
}

TEST(AttentionFlops, AreTwoPerVisiblePairAndElement) {
  for (const Case& one :
       {Case{"one document", {96}, {0, 0}, {}},
        Case{"documents", {32, 40, 1, 23}, {0, 0, 0}, {}},
        Case{"documents in a window", {32, 40, 24}, {0, 0}, 8},
        Case{"many documents", std::vector<int64_t>(32, 16), {0}, {}}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(one.name);
      const OperationCounts counts = count(one, dtype, /*as_documents=*/true);
      // Two matmuls forward and four backward, of heads with as many elements in values as in keys.
      EXPECT_EQ(counts.attention_flops, 3 * visible_pairs(one) * 2 * kHeads * 2 * kHeadDim);
      EXPECT_EQ(counts.matmul_flops, 0);
    }
  }
}

// Each sequence ends with padding, as in a batch of labelled texts. The kernel computes the padding as a document of
// its own, and its results are not used: the report holds what was computed.
TEST(AttentionFlops, OfPaddedSequencesIncludeThePaddingAsADocument) {
  const Case padded{"padding", {96}, {0, 32, 60}, {}};
  double padding_pairs = 0;
  for (const int64_t tokens : padded.padding) {
    padding_pairs += static_cast<double>(tokens * (tokens + 1) / 2);
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double pairs = visible_pairs(padded) + padding_pairs;
    EXPECT_EQ(count(padded, dtype, /*as_documents=*/false).attention_flops, 3 * pairs * 2 * kHeads * 2 * kHeadDim);
  }
}

}  // namespace
}  // namespace lehr::ops
