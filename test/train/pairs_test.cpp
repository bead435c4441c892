// Every pair of features is in a run that equals one device, or is refused for a reason of test/train/composition.json.
//
// LEHR_DRAWS=pairs runs draws that have every pair, LEHR_DRAWS=pairs:3/8 those of an eighth of the pairs;
// LEHR_COMPOSITION=FILE appends a line about each draw, from which script/composition.py makes docs/composition.md.
#include "test/train/pairs.h"

#include <gmock/gmock.h>

#include <iostream>

#include "lehr/base/progress.h"
#include "test/train/compare_draw.h"
#include "test/train/features.h"

namespace lehr::train {
namespace {

using testing::Comparison;
using testing::Composition;
using testing::Draw;
using testing::FeatureSet;
using testing::Pairs;
using testing::Part;

// Draws from which runs are chosen.
constexpr int64_t kPool = 10000;
// More runs mean that some pair is refused again and again for reasons of other features.
constexpr size_t kMostRuns = 400;

std::vector<FeatureSet> features_of_pool(uint64_t seed) {
  std::vector<FeatureSet> pool;
  for (int64_t number = 0; number < kPool; ++number) {
    pool.push_back(features(testing::draw_number(seed, number)));
  }
  return pool;
}

std::vector<Part> wanted_parts() {
  const char* const text = std::getenv("LEHR_DRAWS");
  return testing::part_of_pairs(text == nullptr ? "" : text);
}

class EveryPair : public ::testing::TestWithParam<Part> {};
INSTANTIATE_TEST_SUITE_P(Runs, EveryPair, ::testing::ValuesIn(wanted_parts()), [](const auto& part) {
  return fmt::format("{}_of_{}", part.param.number, part.param.of);
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryPair);

TEST_P(EveryPair, EqualsOneDeviceOrIsRefused) {
  const Composition& rules = Composition::rules();
  const uint64_t seed = testing::seed_of_draws();
  const auto pool = features_of_pool(seed);
  Pairs pairs(rules, GetParam().number - 1, GetParam().of);
  std::set<int64_t> used;
  int64_t equal = 0, refused = 0;
  const ProgressClock clock;
  // Some draws are refused for reasons that are no pair's: others are chosen then.
  for (auto chosen = choose_draws(pairs, pool, used); !chosen.empty() && used.size() < kMostRuns;
       chosen = choose_draws(pairs, pool, used)) {
    const auto all = static_cast<int64_t>(used.size() + chosen.size());
    for (const int64_t number : chosen) {
      const Draw draw = testing::draw_number(seed, number);
      SCOPED_TRACE(fmt::format("LEHR_TEST_SEED={}, draw {}: {}", seed, number, draw.text()));
      used.insert(number);
      const FeatureSet& has = pool[static_cast<size_t>(number)];
      if (pairs.expected(has).empty()) {
        continue;  // an earlier draw was equal where a refusal was expected, or the other way round
      }
      const Comparison found = testing::compare_with_one_device(draw);
      testing::record(seed, number, draw, found);
      testing::expect_equal_or_refused(draw, found);
      if (found.equal()) {
        ++equal;
        pairs.cover_by_equal(has);
      } else if (const auto* const reason = rules.reason_of(found.refused); !found.refused.empty() && reason) {
        ++refused;
        pairs.cover_by_refusal(has, *reason);
      }
      std::cout << clock.text("draws", static_cast<int64_t>(used.size()), all) << "; pairs left: " << pairs.left()
                << std::endl;
    }
  }
  for (const FeatureSet& pair : pairs.uncovered()) {
    ADD_FAILURE() << "no run of " << kPool << " draws covers " << *pair.begin() << " with " << *pair.rbegin();
  }
  std::cout << equal << " draws equal one device, " << refused << " were refused for a reason of the list\n";
}

TEST(Features, OfADrawCanMeetAndBringWhatTheyNeed) {
  const Composition& rules = Composition::rules();
  for (int64_t number = 0; number < 400; ++number) {
    const FeatureSet found = features(testing::draw_number(testing::seed_of_draws(), number));
    EXPECT_TRUE(rules.can_meet(found)) << number;
    EXPECT_EQ(rules.with_needs(found), found) << number;
  }
}

TEST(Pairs, AreAllInAFewDraws) {
  const Composition& rules = Composition::rules();
  const auto pool = features_of_pool(testing::seed_of_draws());
  Pairs pairs(rules, 0, 1);
  const auto chosen = choose_draws(pairs, pool, {});
  EXPECT_LE(chosen.size(), 200U);
  for (const int64_t number : chosen) {
    const FeatureSet& has = pool[static_cast<size_t>(number)];
    const auto* const reason = rules.refuses(has);
    reason == nullptr ? pairs.cover_by_equal(has) : pairs.cover_by_refusal(has, *reason);
  }
  EXPECT_THAT(pairs.uncovered(), ::testing::IsEmpty());
}

TEST(Pairs, OfAllPartsAreThoseOfOne) {
  const Composition& rules = Composition::rules();
  std::vector<FeatureSet> parts;
  for (int64_t part = 0; part < 8; ++part) {
    for (const FeatureSet& pair : Pairs(rules, part, 8).uncovered()) {
      parts.push_back(pair);
    }
  }
  EXPECT_THAT(parts, ::testing::UnorderedElementsAreArray(Pairs(rules, 0, 1).uncovered()));
}

TEST(Pairs, AreChosenByAPartOfTheShares) {
  EXPECT_TRUE(testing::part_of_pairs("300").empty());
  EXPECT_EQ(testing::part_of_pairs("pairs").at(0).of, 1);
  EXPECT_EQ(testing::part_of_pairs("pairs:3/8").at(0).number, 3);
  EXPECT_ANY_THROW(testing::part_of_pairs("pairs:9/8"));
}

// Two meshes, one of which needs experts; a reason that always refuses, and one that refuses some runs.
const Composition& small_rules() {
  static const Composition kRules(
      R"({"features": [{"name": "tp"}, {"name": "ep", "needs": ["moe"]}, {"name": "moe", "one_of": "kinds"},
                       {"name": "dense", "one_of": "kinds"}, {"name": "dropout"}],
          "reasons": [{"message": "never: dropout", "features": ["dropout", "moe"], "always": true},
                      {"message": "sizes", "features": ["tp|ep"]}]})",
      "rules");
  return kRules;
}

TEST(Composition, FeaturesOfOneGroupDoNotMeet) {
  EXPECT_TRUE(small_rules().can_meet({"tp", "moe"}));
  EXPECT_FALSE(small_rules().can_meet({"dense", "moe"}));
  EXPECT_FALSE(small_rules().can_meet({"dense", "ep"})) << "ep needs moe";
}

TEST(Composition, APairIsRefusedIfAReasonAlwaysRefusesItsFeatures) {
  EXPECT_EQ(small_rules().refuses({"ep", "tp"}), nullptr);
  EXPECT_EQ(small_rules().refuses({"ep", "dropout"}), &small_rules().reasons()[0]) << "ep needs moe";
  EXPECT_EQ(small_rules().reason_of("key: sizes do not fit"), &small_rules().reasons()[1]);
}

TEST(Pairs, AreCoveredByEqualRunsAndByTheirOwnRefusalOnly) {
  Pairs pairs(small_rules(), 0, 1);
  const int64_t all = pairs.left();
  EXPECT_EQ(all, 8) << "all but dense with moe and dense with ep";
  pairs.cover_by_refusal({"tp", "ep", "moe"}, small_rules().reasons()[1]);
  EXPECT_EQ(pairs.left(), all) << "refused for a size";
  EXPECT_EQ(pairs.expected({"tp", "ep", "moe"}).size(), 3U);
  pairs.cover_by_equal({"tp", "ep", "moe"});
  EXPECT_EQ(pairs.left(), all - 3);
  EXPECT_EQ(pairs.expected({"tp", "moe", "dropout"}).size(), 1U) << "is refused, so dropout with tp is not covered";
  pairs.cover_by_refusal({"tp", "moe", "dropout"}, small_rules().reasons()[0]);
  EXPECT_EQ(pairs.left(), all - 4);
}

}  // namespace
}  // namespace lehr::train
