// The work of a step: tokens without padding, and the pairs of attention within documents.
#include "lehr/train/step_work.h"

#include <gmock/gmock.h>

namespace lehr::train {
namespace {

class NoLabels : public CausalLMTask {
 public:
  int64_t count_valid(const Batch& /*batch*/) const override { return 7; }
};

at::Tensor rows(const std::vector<std::vector<int64_t>>& values) {
  std::vector<at::Tensor> all;
  for (const auto& row : values) {
    all.push_back(at::tensor(row, at::kLong));
  }
  return at::stack(all);
}

// The definition: a query sees the keys of its document up to its own position.
StepWork by_definition(const at::Tensor& documents) {
  StepWork work{.valid = 7};
  for (int64_t row = 0; row < documents.size(0); ++row) {
    for (int64_t query = 0; query < documents.size(1); ++query) {
      const auto id = documents[row][query].item<int64_t>();
      work.tokens += id >= 0 ? 1 : 0;
      for (int64_t key = 0; id >= 0 && key <= query; ++key) {
        work.attention_pairs += documents[row][key].item<int64_t>() == id ? 1 : 0;
      }
    }
  }
  return work;
}

void expect_equal(const StepWork& found, const StepWork& expected) {
  EXPECT_EQ(found.valid, expected.valid);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.attention_pairs, expected.attention_pairs);
}

TEST(StepWork, OfPackedDocumentsIsThatOfTheDefinition) {
  const at::Tensor documents = rows({{0, 0, 0, 1, 2, 2, -1, -1}, {0, 0, 0, 0, 0, 0, 0, 0}, {3, 4, 4, 4, 5, 5, 5, 5}});
  expect_equal(
      count_work(NoLabels(), {{"input_ids", at::zeros_like(documents)}, {"document_ids", documents}}),
      by_definition(documents));
}

TEST(StepWork, OfPaddedSequencesIsThatOfTheTokens) {
  const at::Tensor mask = rows({{1, 1, 1, 0}, {0, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}});
  expect_equal(count_work(NoLabels(), {{"attention_mask", mask.to(at::kBool)}}), {7, 10, 6 + 6 + 10});
}

// Batches whose sequences hold one document each have no document ids, as attention needs none.
TEST(StepWork, OfSingleDocumentsThatArePaddedIsThatOfTheTokens) {
  const at::Tensor positions = rows({{0, 1, 2, 0, 0}, {0, 1, 2, 3, 4}, {0, 1, 0, 0, 0}, {0, 0, 0, 0, 0}});
  expect_equal(
      count_work(NoLabels(), {{"input_ids", at::zeros_like(positions)}, {"position_ids", positions}}),
      {7, 3 + 5 + 2, 6 + 15 + 3});
  // Positions of another kind, as of a task of the user's own: no padding is known.
  const at::Tensor others = rows({{7, 8, 9}, {0, 1, 0}, {0, 2, 4}, {0, 1, 5}});
  expect_equal(count_work(NoLabels(), {{"position_ids", others}}), {7, 3 + 2 + 3 + 3, 6 + 3 + 6 + 6});
}

TEST(TokenMask, IsOfThePositionsThatCountAsTokens) {
  const auto expect_mask = [](const Batch& batch, const at::Tensor& expected) {
    const at::Tensor mask = token_mask(batch);
    ASSERT_TRUE(mask.defined());
    EXPECT_TRUE(at::equal(mask, expected.to(at::kBool)));
    EXPECT_EQ(mask.sum().item<int64_t>(), count_work(NoLabels(), batch).tokens);
  };
  expect_mask({{"document_ids", rows({{0, 0, 1, -1}, {-1, -1, -1, -1}})}}, rows({{1, 1, 1, 0}, {0, 0, 0, 0}}));
  expect_mask({{"attention_mask", rows({{0, 1, 1}, {1, 1, 0}})}}, rows({{0, 1, 1}, {1, 1, 0}}));
  expect_mask({{"position_ids", rows({{0, 1, 2, 3}, {0, 1, 0, 0}})}}, rows({{1, 1, 1, 1}, {1, 1, 0, 0}}));
}

TEST(TokenMask, IsUndefinedWithoutPadding) {
  const std::vector<Batch> batches{
      {{"document_ids", rows({{0, 0, 1}, {3, 4, 4}})}},
      {{"attention_mask", rows({{1, 1}, {1, 1}})}},
      {{"position_ids", rows({{0, 1, 2}, {7, 0, 3}})}},
      {{"input_ids", rows({{5, 6}})}}};
  for (const Batch& batch : batches) {
    EXPECT_FALSE(token_mask(batch).defined()) << batch.begin()->first;
  }
}

TEST(StepWork, OfWholeSequencesNeedsNoMask) {
  expect_equal(count_work(NoLabels(), {{"input_ids", at::zeros({3, 5}, at::kLong)}}), {7, 15, 3 * 15});
  expect_equal(count_work(NoLabels(), {{"pixels", at::zeros({3, 5})}, {"labels", at::zeros({3})}}), {7, 15, 3 * 15});
}

}  // namespace
}  // namespace lehr::train
