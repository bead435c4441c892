// Owners of whole tensors: the balance of their work, and the messages that bring shards to them.
#include "lehr/shard/owner_plan.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace lehr::shard {
namespace {

using ::testing::ElementsAre;

double cost(at::IntArrayRef shape) {
  return static_cast<double>(shape[0] * shape[1]);
}

SpreadTensor rows_over(std::vector<int64_t> shape, size_t dim, int64_t members) {
  SpreadTensor tensor{.shape = shape, .boxes = {}};
  for (int64_t member = 0; member < members; ++member) {
    Box box = whole_box(shape);
    box[dim] = chunk(box[dim], member, members);
    tensor.boxes.push_back(box);
  }
  return tensor;
}

std::vector<int64_t> owners(const OwnerPlan& plan) {
  std::vector<int64_t> found;
  for (const Piece& piece : plan.pieces) {
    found.push_back(piece.owner);
  }
  return found;
}

TEST(OwnerPlan, GivesTheNextCostliestToTheRankWithTheLeastWork) {
  std::vector<SpreadTensor> tensors;
  for (const int64_t rows : {4, 8, 12, 20}) {
    tensors.push_back(rows_over({rows, 4}, 0, 2));
  }
  const OwnerPlan plan = plan_owners(tensors, 2, cost, 2, 1000);
  EXPECT_THAT(owners(plan), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(plan.loads, ElementsAre(96, 80));
}

TEST(OwnerPlan, LeavesWholeMatricesWhereTheyAreAndEvensOutTheRest) {
  // Two experts on each member, and a matrix of which both hold a part.
  const std::vector<SpreadTensor> tensors{rows_over({4, 6, 5}, 0, 2), rows_over({10, 4}, 1, 2)};
  const OwnerPlan plan = plan_owners(tensors, 2, cost, 2, 1000);
  EXPECT_THAT(owners(plan), ElementsAre(0, 0, 1, 1, 0));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(plan.pieces[i].sent()) << i;
  }
  EXPECT_TRUE(plan.pieces[4].gathered && plan.pieces[4].spread);
  EXPECT_THAT(plan.waves, ElementsAre(ElementsAre(4)));
}

TEST(OwnerPlan, SharesTheWorkOfReplicasAndGathersNothingForIt) {
  SpreadTensor tensor{.shape = {6, 4}, .boxes = {whole_box({6, 4}), whole_box({6, 4})}};
  const OwnerPlan plan = plan_owners({tensor, tensor}, 2, cost, 2, 1000);
  EXPECT_THAT(owners(plan), ElementsAre(0, 1));
  for (const Piece& piece : plan.pieces) {
    EXPECT_FALSE(piece.gathered);
    EXPECT_TRUE(piece.spread);
  }
}

TEST(OwnerPlan, BoundsTheElementsThatAnOwnerGathersAtOnce) {
  std::vector<SpreadTensor> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(rows_over({4, 4}, 0, 2));
  }
  const OwnerPlan plan = plan_owners(tensors, 2, cost, 2, 40);
  ASSERT_EQ(plan.waves.size(), 3U);  // five of 16 elements each: two, two, one
  for (const auto& wave : plan.waves) {
    for (int64_t owner = 0; owner < 2; ++owner) {
      const auto mine =
          std::count_if(wave.begin(), wave.end(), [&](size_t i) { return plan.pieces[i].owner == owner; });
      EXPECT_LE(mine * 16, 40);
    }
  }
}

TEST(OwnerPlan, CutsTheWorkIntoWavesThatOverlapUnlessTheyAreSmall) {
  const auto waves = [](int64_t rows) {
    const std::vector<SpreadTensor> tensors(32, rows_over({rows, 1024}, 0, 2));
    return plan_owners(tensors, 2, cost, 2, 1 << 30).waves.size();
  };
  EXPECT_EQ(waves(2048), 8U);  // 16 matrices of two million elements on each member
  EXPECT_EQ(waves(256), 4U);   // of a quarter of a million: a wave has a million
}

// Two replicas of two members each, that shard columns; and members of one replica that hold the same rows.
TEST(OwnerPlan, TakesAPartFromTheOwnerItselfOrElseFromItsReplica) {
  SpreadTensor tensor = rows_over({4, 6}, 1, 2);
  tensor.boxes = {tensor.boxes[0], tensor.boxes[1], tensor.boxes[0], tensor.boxes[1]};
  Piece piece{.numel = 24, .owner = 3};
  EXPECT_EQ(source_of(tensor, piece, 0, 2), 2);
  EXPECT_EQ(source_of(tensor, piece, 1, 2), 3);
  EXPECT_EQ(source_of(tensor, piece, 2, 2), 2);
  std::swap(tensor.boxes[1], tensor.boxes[2]);  // one replica: 0 and 1 hold the same part, 2 and 3 the other
  piece.owner = 1;
  EXPECT_EQ(source_of(tensor, piece, 0, 1), 1);
  EXPECT_EQ(source_of(tensor, piece, 3, 1), 2);
}

TEST(OwnerPlan, IgnoresRanksThatHoldNothing) {
  const SpreadTensor tensor = rows_over({2, 3}, 0, 4);  // fewer rows than ranks
  const OwnerPlan plan = plan_owners({tensor}, 2, cost, 4, 1000);
  EXPECT_TRUE(part_of(tensor, plan.pieces[0], 3).empty());
  EXPECT_EQ(part_of(tensor, plan.pieces[0], 1), (Box{{1, 2}, {0, 3}}));
}

}  // namespace
}  // namespace lehr::shard
