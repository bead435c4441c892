// The ends of sequences, which a rank computes before its batch is copied to a device, and numbers of all ranks.
#include "lehr/train/ranks.h"

#include <gtest/gtest.h>

#include "lehr/train/task.h"

namespace lehr::train {
namespace {

at::Tensor numbers(std::vector<int64_t> row) {
  return at::tensor(row, at::kLong).unsqueeze(0);
}

TEST(Ranks, ComputeTheEndsOfSequences) {
  const at::Tensor tokens = numbers({1, 2, 3, 4});
  const Batch packed = Ranks().positions_of(
      {{"input_ids", tokens}, {"labels", tokens}, {"position_ids", tokens}, {"document_ids", numbers({0, 0, 0, 1})}});
  const at::Tensor ends = CausalLMTask().build_forward_inputs(packed).attention_mask.sequence_ends;
  ASSERT_TRUE(ends.defined());
  EXPECT_TRUE(at::equal(ends.to(at::kLong), numbers({3, 4})));

  const at::Tensor padding = numbers({1, 1, 0, 0}).to(at::kBool);
  const Batch padded = Ranks().positions_of(
      {{"input_ids", tokens}, {"labels", numbers({0})}, {"attention_mask", padding}, {"pooling_mask", padding}});
  const at::Tensor padded_ends = ClassificationTask().build_forward_inputs(padded).attention_mask.sequence_ends;
  ASSERT_TRUE(padded_ends.defined());
  EXPECT_TRUE(at::equal(padded_ends.to(at::kLong), numbers({2, 4})));
}

TEST(Ranks, ComputeNoEndsForSequencesOfOneDocument) {
  const at::Tensor tokens = numbers({1, 2, 3, 4});
  const Batch batch = Ranks().positions_of({{"input_ids", tokens}, {"labels", tokens}, {"position_ids", tokens}});
  EXPECT_EQ(batch.count("sequence_ends"), 0U);
  EXPECT_FALSE(CausalLMTask().build_forward_inputs(batch).attention_mask.sequence_ends.defined());
}

TEST(Ranks, GatherARowOfNumbersOfEach) {
  EXPECT_TRUE(at::equal(Ranks().gather({0.1, 2}), at::tensor({0.1, 2.0}, at::kDouble).unsqueeze(0)));
}

}  // namespace
}  // namespace lehr::train
