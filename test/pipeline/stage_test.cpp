#include "lehr/pipeline/stage.h"

#include <gtest/gtest.h>

#include "lehr/base/error.h"

namespace lehr::pipeline {
namespace {

std::vector<int64_t> sizes(int64_t layers, int64_t stages, int64_t pre, int64_t post) {
  std::vector<int64_t> result;
  int64_t next = 0;
  for (int64_t s = 0; s < stages; ++s) {
    const auto [begin, end] = distribute_layers_for_pipeline_stage(layers, pre, post, {s, stages});
    EXPECT_EQ(begin, next);
    next = end;
    result.push_back(end - begin);
  }
  EXPECT_EQ(next, layers);
  return result;
}

TEST(DistributeLayers, HasTheKnownSplits) {
  EXPECT_EQ(sizes(24, 4, 1, 1), (std::vector<int64_t>{6, 7, 6, 5}));
  EXPECT_EQ(sizes(30, 4, 0, 2), (std::vector<int64_t>{8, 8, 8, 6}));
  EXPECT_EQ(sizes(34, 4, 0, 0), (std::vector<int64_t>{9, 9, 8, 8}));
  EXPECT_EQ(sizes(10, 1, 1, 2), (std::vector<int64_t>{10}));
}

TEST(DistributeLayers, UsesTheChosenNumbers) {
  const auto chosen = [](int64_t stage, std::vector<int64_t> layers) {
    return distribute_layers_for_pipeline_stage(6, 1, 1, {stage, 3, std::move(layers)});
  };
  EXPECT_EQ(chosen(0, {1, 3, 2}), std::pair(int64_t{0}, int64_t{1}));
  EXPECT_EQ(chosen(1, {1, 3, 2}), std::pair(int64_t{1}, int64_t{4}));
  EXPECT_EQ(chosen(2, {1, 3, 2}), std::pair(int64_t{4}, int64_t{6}));
  EXPECT_THROW(chosen(0, {1, 3, 3}), Error);
  EXPECT_THROW(chosen(0, {3, 3}), Error);
  EXPECT_THROW(chosen(0, {6, 0, 0}), Error);
}

TEST(DistributeLayers, RefusesAnEmptyStage) {
  EXPECT_THROW(distribute_layers_for_pipeline_stage(2, 2, 0, {0, 2}), Error);
  EXPECT_THROW(distribute_layers_for_pipeline_stage(2, 0, 0, {2, 2}), Error);
}

}  // namespace
}  // namespace lehr::pipeline
