// The order of data: permutations, epochs, weights.
#include "lehr/data/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "lehr/data/permutation.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

TEST(Permutation, IsABijectionForEverySize) {
  for (int64_t size = 1; size < 1200; size += size < 70 ? 1 : 53) {
    for (const uint64_t key : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
      const Permutation permutation(size, key);
      std::vector<bool> hit(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t to = permutation(i);
        ASSERT_TRUE(to >= 0 && to < size && !hit[to]) << size << ' ' << key << ' ' << i;
        hit[to] = true;
      }
    }
  }
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  const int64_t size = (int64_t{1} << 60) + 12345;
  const Permutation permutation(size, 5);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t to = permutation(size - 1 - i);
    ASSERT_TRUE(to >= 0 && to < size);
    seen.insert(to);
  }
  EXPECT_EQ(seen.size(), 2000U);
}

TEST(Permutation, OfThreeElementsHasAllSixFormsEquallyOften) {
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t key = 0; key < 6000; ++key) {
    const Permutation permutation(3, key);
    ++counts[{permutation(0), permutation(1), permutation(2)}];
  }
  ASSERT_EQ(counts.size(), 6U);
  for (const auto& [form, count] : counts) {
    EXPECT_NEAR(count, 1000, 150);  // five standard deviations are 144
  }
}

TEST(Permutation, SpreadsNeighboursLikeARandomPermutation) {
  const int64_t size = 10000;
  const Permutation permutation(size, 42);
  double sum = 0;  // of the distances between the images of neighbours; its mean is size / 3 for a random permutation
  for (int64_t i = 0; i + 1 < size; ++i) {
    sum += std::abs(static_cast<double>(permutation(i + 1) - permutation(i)));
  }
  EXPECT_NEAR(sum / (size * size / 3.0), 1.0, 0.05);  // the standard deviation of the mean is 0.7 %
}

std::vector<SampleOrder::Place> places(const SampleOrder& order, int64_t count) {
  std::vector<SampleOrder::Place> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(order.at(i));
  }
  return result;
}

TEST(SampleOrder, OnePassVisitsEverySampleOnceAndMixesEvenly) {
  for (const bool shuffle : {false, true}) {
    const SampleOrder order(
        {{.size = 100}, {.size = 1}, {.size = 37}}, {.seed = 3, .shuffle = shuffle, .repeat = false});
    ASSERT_EQ(order.size(), 138);
    std::set<std::pair<int64_t, int64_t>> seen;
    int64_t of_first = 0;
    for (int64_t i = 0; i < 138; ++i) {
      const auto place = order.at(i);
      EXPECT_EQ(place.epoch, 0);
      EXPECT_TRUE(seen.insert({place.dataset, place.sample}).second);
      of_first += place.dataset == 0 ? 1 : 0;
      EXPECT_NEAR(static_cast<double>(of_first), static_cast<double>(i + 1) * 100 / 138, 1.0);
    }
    EXPECT_THAT(usage_error_of([&] { order.at(138); }), HasSubstr("sample 138 was requested, but there are 138"));
  }
}

TEST(SampleOrder, KeepsWeightsInEveryStretchToWithinTheNumberOfDatasets) {
  const std::vector<double> weights = {0.5, 3.0, 0.001, 1.0};
  std::vector<SampleOrder::Dataset> datasets;
  for (const double weight : weights) {
    datasets.push_back({.size = 10, .weight = weight});
  }
  const SampleOrder order(datasets, {.seed = 11});
  const double total = 4.501;
  std::vector<double> counts(4);
  for (int64_t i = 0; i < 50000; ++i) {
    ++counts[order.at(i).dataset];
    for (size_t d = 0; d < 4; ++d) {
      // one for each dataset in the chain of divisions, and the weights are kept to 2^-32
      ASSERT_NEAR(counts[d], static_cast<double>(i + 1) * weights[d] / total, 4.0) << i << ' ' << d;
    }
  }
}

TEST(SampleOrder, EveryEpochTakesEachSampleOnceInAnotherOrder) {
  const SampleOrder order({{.size = 50, .weight = 2}, {.size = 20, .weight = 1}}, {.seed = 4});
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> by_epoch;
  for (const auto& place : places(order, 3000)) {
    by_epoch[{place.dataset, place.epoch}].push_back(place.sample);
  }
  int complete = 0;
  for (auto& [key, samples] : by_epoch) {
    const int64_t size = key.first == 0 ? 50 : 20;
    const std::set<int64_t> unique(samples.begin(), samples.end());
    EXPECT_EQ(unique.size(), samples.size());
    complete += static_cast<int64_t>(samples.size()) == size ? 1 : 0;
  }
  EXPECT_GE(complete, 88);  // 2000 / 50 + 1000 / 20, except the last of each
  EXPECT_NE((by_epoch[{0, 0}]), (by_epoch[{0, 1}]));
}

TEST(SampleOrder, DependsOnTheSeedAndOnNothingElse) {
  const auto samples = [](uint64_t seed) {
    std::vector<int64_t> result;
    const SampleOrder order({{.size = 1000}}, {.seed = seed});
    for (const auto& place : places(order, 100)) {
      result.push_back(place.sample);
    }
    return result;
  };
  EXPECT_EQ(samples(1), samples(1));
  EXPECT_NE(samples(1), samples(2));
  // A golden value: a change here changes the meaning of the step number in every checkpoint.
  const auto first = samples(0);
  EXPECT_EQ(
      std::vector<int64_t>(first.begin(), first.begin() + 6), (std::vector<int64_t>{310, 280, 819, 249, 547, 234}));
}

TEST(SampleOrder, WithoutShufflingReadsInOrder) {
  const SampleOrder order({{.size = 5}}, {.shuffle = false});
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(order.at(i).sample, i % 5);
    EXPECT_EQ(order.at(i).epoch, i / 5);
  }
}

TEST(SampleOrder, WrongDatasetsAreErrors) {
  EXPECT_THAT(usage_error_of([] { SampleOrder({}, {}); }), HasSubstr("no dataset"));
  EXPECT_THAT(usage_error_of([] { SampleOrder({{.size = 0}}, {}); }), HasSubstr("no samples"));
  EXPECT_THAT(usage_error_of([] { SampleOrder({{.size = 1, .weight = 0}}, {}); }), HasSubstr("expected more than 0"));
}

}  // namespace
}  // namespace lehr::data
