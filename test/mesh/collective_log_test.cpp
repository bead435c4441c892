// The ring of the last collectives.
#include "lehr/mesh/collective_log.h"

#include <gmock/gmock.h>

namespace lehr::mesh {
namespace {

using testing::HasSubstr;

TEST(CollectiveLog, CountsByGroupAndKeepsTheLastEntries) {
  CollectiveLog log(4);
  EXPECT_EQ(log.where(), "has not entered a collective yet");
  const size_t tp = log.add_group("tp", "0,1");
  const size_t dp = log.add_group("dp_shard", "0,2");
  for (int i = 0; i < 5; ++i) {
    log.end(log.begin(tp, "all_reduce", 8, true));
  }
  log.end(log.begin(dp, "send", 8, false));
  const int64_t ticket = log.begin(dp, "all_gather", 16, true);
  const auto recent = log.recent();
  ASSERT_EQ(recent.size(), 4U);
  EXPECT_EQ(recent[0].describe(), "all_reduce number 4 on axis tp");
  EXPECT_EQ(recent[2].describe(), "send on axis dp_shard");
  EXPECT_EQ(recent[3].describe(), "all_gather number 1 on axis dp_shard");
  EXPECT_EQ(recent[3].bytes, 16);
  EXPECT_TRUE(recent[2].end);
  EXPECT_FALSE(recent[3].end);
  const auto groups = log.groups();
  EXPECT_EQ(groups[tp].started, 5);
  EXPECT_EQ(groups[dp].started, 1);
  EXPECT_THAT(log.where(), HasSubstr("is computing; its last collective was all_gather number 1 on axis dp_shard"));
  log.waits(ticket);
  EXPECT_THAT(log.where(), HasSubstr("waits in all_gather number 1 on axis dp_shard for 0 s"));
  EXPECT_THAT(
      log.text(),
      testing::MatchesRegex("([0-9.]+ s ago: all_reduce number [45] on axis tp, 8 bytes, 0.0[0-9]+ s\n){2}"
                            "[0-9.]+ s ago: send on axis dp_shard, 8 bytes, 0.0[0-9]+ s\n"
                            "[0-9.]+ s ago: all_gather number 1 on axis dp_shard, 16 bytes, not finished\n"));
  log.end(ticket);
  EXPECT_THAT(log.where(), HasSubstr("is computing"));
}

TEST(CollectiveLog, IgnoresTheEndOfAnOverwrittenEntry) {
  CollectiveLog log(2);
  const size_t tp = log.add_group("tp", "0,1");
  const int64_t first = log.begin(tp, "all_reduce", 8, true);
  log.begin(tp, "all_reduce", 8, true);
  EXPECT_TRUE(log.find(first));
  log.begin(tp, "all_reduce", 8, true);
  EXPECT_FALSE(log.find(first));
  log.end(first);  // has no effect
  EXPECT_EQ(log.recent().front().number, 2);
}

}  // namespace
}  // namespace lehr::mesh
