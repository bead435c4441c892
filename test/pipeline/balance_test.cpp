#include "lehr/pipeline/balance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "lehr/base/error.h"
#include "lehr/pipeline/stage.h"

namespace lehr::pipeline {
namespace {

using ::testing::ElementsAre;

std::vector<double> alike(size_t count) {
  return std::vector<double>(count, 3.7);  // any cost
}

TEST(BalanceLayers, DistributesEqualLayersLikeTheEvenRule) {
  for (int64_t layers = 1; layers <= 20; ++layers) {
    for (int64_t stages = 1; stages <= layers; ++stages) {
      std::vector<int64_t> even;
      for (int64_t s = 0; s < stages; ++s) {
        const auto [begin, end] = distribute_layers_for_pipeline_stage(layers, 0, 0, {s, stages});
        even.push_back(end - begin);
      }
      EXPECT_EQ(balance_layers({.layers = alike(static_cast<size_t>(layers))}, stages), even);
    }
  }
}

TEST(BalanceLayers, CountsTheHeadAsTheLayersThatItCosts) {
  const double head = 2 * 3.7;
  EXPECT_THAT(balance_layers({.layers = alike(30), .after = head}, 4), ElementsAre(8, 8, 8, 6));
  EXPECT_THAT(balance_layers({.layers = alike(14), .after = head}, 4), ElementsAre(4, 4, 4, 2));
  EXPECT_THAT(balance_layers({.before = head, .layers = alike(14)}, 4), ElementsAre(2, 4, 4, 4));
  EXPECT_THAT(balance_layers({.before = 3.7, .layers = alike(24), .after = 3.7}, 4), ElementsAre(6, 7, 6, 5));
  // The head costs half a layer: moving a layer away from the last stage would make nothing faster.
  EXPECT_THAT(balance_layers({.layers = alike(7), .after = 0.5 * 3.7}, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(balance_layers({.layers = alike(8), .after = 100 * 3.7}, 4), ElementsAre(3, 2, 2, 1));
}

TEST(BalanceLayers, PutsFewerLayersBesideCostlyOnes) {
  EXPECT_THAT(balance_layers({.layers = {1, 1, 1, 1, 4, 4}}, 3), ElementsAre(4, 1, 1));
  EXPECT_THAT(balance_layers({.layers = {5, 1, 1, 1, 1, 1}}, 2), ElementsAre(1, 5));
}

// Compares with all possible distributions.
TEST(BalanceLayers, FindsTheOptimum) {
  uint64_t state = 1;
  const auto next = [&](uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>((state >> 33) % below);
  };
  for (int64_t round = 0; round < 200; ++round) {
    PartCosts costs{.before = next(4), .after = next(12)};
    const auto layers = 3 + static_cast<int64_t>(next(7));
    for (int64_t i = 0; i < layers; ++i) {
      costs.layers.push_back(1 + next(6));
    }
    const int64_t stages = 1 + static_cast<int64_t>(next(static_cast<uint64_t>(std::min<int64_t>(layers, 5))));
    const auto value = [&](const std::vector<int64_t>& ways) {
      std::pair<double, double> worst_and_squares;
      auto layer = costs.layers.begin();
      for (size_t s = 0; s < ways.size(); ++s) {
        const double ends = (s == 0 ? costs.before : 0) + (s + 1 == ways.size() ? costs.after : 0);
        const double cost = std::accumulate(layer, layer + ways[s], ends);
        layer += ways[s];
        worst_and_squares.first = std::max(worst_and_squares.first, cost);
        worst_and_squares.second += cost * cost;
      }
      return worst_and_squares;
    };
    std::pair<double, double> best{1e9, 1e9};
    std::vector<int64_t> way;
    const std::function<void(int64_t)> all = [&](int64_t left) {
      if (static_cast<int64_t>(way.size()) + 1 == stages) {
        way.push_back(left);
        best = std::min(best, value(way));
        way.pop_back();
        return;
      }
      for (int64_t count = 1; count < left; ++count) {
        way.push_back(count);
        all(left - count);
        way.pop_back();
      }
    };
    all(layers);
    const auto found = balance_layers(costs, stages);
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](int64_t count) { return count > 0; }));
    EXPECT_EQ(value(found), best);  // whole numbers: exact
  }
}

TEST(BalanceLayers, RefusesMoreStagesThanLayers) {
  EXPECT_THROW(balance_layers({.layers = alike(3)}, 4), Error);
  EXPECT_THROW(balance_layers({.layers = {}}, 1), Error);
}

TEST(DescribeLayers, GroupsEqualNeighbours) {
  EXPECT_EQ(describe_layers({7, 8, 8, 8, 6}), "7, 3 x 8, 6");
}

}  // namespace
}  // namespace lehr::pipeline
