// Random runs on random meshes equal one device, or are refused for one of the reasons in test/train/composition.json.
//
// LEHR_DRAWS=300 LEHR_TEST_SEED=7 draws 300 others; --gtest_filter='*EqualsOneDevice/17' repeats number 17 of them.
#include <gmock/gmock.h>

#include <iostream>
#include <set>

#include "test/train/compare_draw.h"

namespace lehr::train {
namespace {

using testing::Comparison;
using testing::Draw;

// LEHR_DRAWS, or 12; 0 where it asks for pairs (pairs_test.cpp).
int64_t number_of_draws() {
  const char* const text = std::getenv("LEHR_DRAWS");
  return text == nullptr ? 12 : std::string_view(text).starts_with("pairs") ? 0 : std::stoll(text);
}

class RandomDraws : public ::testing::TestWithParam<int64_t> {
 protected:
  static void TearDownTestSuite() {
    std::cout << equal << " draws equal one device, " << refused << " were refused for a reason of the list\n";
    if (equal + refused >= 12) {  // not where one draw is repeated
      EXPECT_LE(refused, (equal + refused) / 3) << "draws: too few of them are runs";
    }
  }
  static int64_t equal, refused;  // draws so far
};
int64_t RandomDraws::equal = 0;
int64_t RandomDraws::refused = 0;

INSTANTIATE_TEST_SUITE_P(Runs, RandomDraws, ::testing::Range<int64_t>(0, number_of_draws()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RandomDraws);

TEST_P(RandomDraws, EqualsOneDevice) {
  const Draw draw = testing::draw_number(testing::seed_of_draws(), GetParam());
  SCOPED_TRACE(draw.text());
  const Comparison found = testing::compare_with_one_device(draw);
  testing::record(testing::seed_of_draws(), GetParam(), draw, found);
  testing::expect_equal_or_refused(draw, found);
  equal += found.equal() ? 1 : 0;
  refused += found.refused.empty() ? 0 : 1;
}

TEST(Draws, AreOfEveryFamily) {
  std::set<std::string> found;
  for (int64_t number = 0; number < 400; ++number) {
    found.insert(testing::draw_number(testing::seed_of_draws(), number).family);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(testing::trained_families()));
}

}  // namespace
}  // namespace lehr::train
