// Starts of ranks over a store that still has the keys of earlier starts.
#include "lehr/mesh/agreed_start.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <set>
#include <thread>

#include "test/base/error_of.h"

namespace lehr::mesh {
namespace {

using any_error::error_of;
using std::chrono::milliseconds;

class AgreedStart : public ::testing::Test {
 protected:
  // Starts the ranks in this order, and returns what each has agreed on.
  std::vector<std::string> start(const std::vector<int64_t>& order) {
    std::vector<std::string> agreed(order.size());
    std::vector<std::thread> ranks;
    for (const int64_t rank : order) {
      ranks.emplace_back([&, rank] {
        agreed[static_cast<size_t>(rank)] =
            agree_on_start(*store_, rank, static_cast<int64_t>(order.size()), milliseconds(20'000));
      });
      std::this_thread::sleep_for(milliseconds(30));  // so that the first ones meet the keys of the start before
    }
    for (auto& rank : ranks) {
      rank.join();
    }
    return agreed;
  }

  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(AgreedStart, IsTheSameOnAllRanksAndAnotherEachTime) {
  std::set<std::string> all;
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}, {1, 0}, {0}, {3, 1, 2, 0}}) {
    const auto agreed = start(order);
    EXPECT_EQ(std::set<std::string>(agreed.begin(), agreed.end()).size(), 1U);
    EXPECT_TRUE(all.insert(agreed.front()).second) << "a prefix of an earlier start";
  }
}

TEST_F(AgreedStart, IgnoresAStartThatWasBrokenOffAtAnyPoint) {
  // Rank 0 ended before the others answered; then they answered and ended before a new rank 0 came.
  error_of([&] { agree_on_start(*store_, 0, 3, milliseconds(20)); });
  error_of([&] { agree_on_start(*store_, 1, 3, milliseconds(20)); });
  const auto agreed = start({1, 2, 0});
  EXPECT_EQ(std::set<std::string>(agreed.begin(), agreed.end()).size(), 1U);
}

TEST_F(AgreedStart, NamesTheRanksThatAreMissing) {
  std::string of_rank_1;
  std::thread rank_1([&] { of_rank_1 = error_of([&] { agree_on_start(*store_, 1, 4, milliseconds(400)); }); });
  EXPECT_EQ(
      error_of([&] { agree_on_start(*store_, 0, 4, milliseconds(300)); }),
      "rank 0: ranks 2, 3 of 4 did not reach the start within 0.3 s");
  rank_1.join();
  EXPECT_EQ(of_rank_1, "rank 1: ranks 2, 3 of 4 did not reach the start within 0.4 s");
  const auto empty = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(
      error_of([&] { agree_on_start(*empty, 1, 2, milliseconds(10)); }),
      "rank 1: rank 0 of 2 did not reach the start within 0.01 s");
}

}  // namespace
}  // namespace lehr::mesh
