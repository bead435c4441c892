#include "lehr/emulate/replay.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"

namespace lehr::emulate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kGigabyte = 1'000'000'000;

// Two ranks per node; 1 GB/s within a node, 0.5 GB/s between nodes.
plan::Machine machine() {
  return {
      .ranks_per_node = 2,
      .node_gb_per_second = 1,
      .node_latency_us = 0,
      .network_gb_per_second = 0.5,
      .network_latency_us = 0,
      .achieved_link_fraction = 1,
      .communication_overlap = 1};
}

// What a rank does, written down by hand.
class Rank {
 public:
  Rank& compute(double seconds) {
    recording_.events.push_back({.kind = EventKind::compute});
    seconds_.resize(recording_.events.size(), 0);
    seconds_.back() = seconds;
    return *this;
  }
  size_t start(const Channel& channel, const std::string& collective, int64_t bytes) {
    auto& channels = recording_.channels;
    const auto found = std::find(channels.begin(), channels.end(), channel);
    const auto number = static_cast<size_t>(found - channels.begin());
    if (found == channels.end()) {
      channels.push_back(channel);
    }
    recording_.calls.push_back({.channel = number, .collective = collective, .bytes = bytes});
    recording_.events.push_back({.kind = EventKind::start, .call = recording_.calls.size() - 1});
    return recording_.calls.size() - 1;
  }
  Rank& wait(size_t call) {
    recording_.events.push_back({.kind = EventKind::wait, .call = call});
    return *this;
  }
  // Starts and waits.
  Rank& call(const Channel& channel, const std::string& collective, int64_t bytes) {
    return wait(start(channel, collective, bytes));
  }
  const Recording& recording() const { return recording_; }
  std::vector<double> seconds() const {
    std::vector<double> all = seconds_;
    all.resize(recording_.events.size(), 0);
    return all;
  }

 private:
  Recording recording_;
  std::vector<double> seconds_;
};

Replay replayed(const std::vector<Rank>& ranks, const plan::Machine& on = machine()) {
  std::vector<Recording> recordings;
  std::vector<std::vector<double>> seconds;
  for (const Rank& rank : ranks) {
    recordings.push_back(rank.recording());
    seconds.push_back(rank.seconds());
  }
  return replay(recordings, seconds, on);
}

Channel group(std::vector<int64_t> ranks, const std::string& axes = "tp") {
  return {.axes = axes, .ranks = std::move(ranks)};
}
Channel message(int64_t from, int64_t to) {
  return {.axes = "pp", .ranks = {from, to}, .message = true};
}

// An all-reduce of n bytes over two ranks of a node sends n bytes out of each.
TEST(Replay, ACollectiveBeginsWithItsLastRank) {
  std::vector<Rank> ranks(2);
  ranks[0].compute(1).call(group({0, 1}), "all_reduce", kGigabyte).compute(1);
  ranks[1].compute(3).call(group({0, 1}), "all_reduce", kGigabyte);
  const Replay step = replayed(ranks);
  EXPECT_DOUBLE_EQ(step.step_seconds, 5);
  EXPECT_DOUBLE_EQ(step.ranks[0].computing, 2);
  EXPECT_DOUBLE_EQ(step.ranks[0].waiting, 2);
  EXPECT_DOUBLE_EQ(step.ranks[0].exposed("tp"), 1);
  EXPECT_DOUBLE_EQ(step.ranks[1].waiting, 0);
  EXPECT_DOUBLE_EQ(step.ranks[1].exposed(), 1);
  EXPECT_DOUBLE_EQ(step.ranks[1].end, 4);
}

TEST(Replay, ATransferOverlapsWithPartOfTheComputation) {
  plan::Machine on = machine();
  on.communication_overlap = 0.5;
  std::vector<Rank> ranks(2);
  for (Rank& rank : ranks) {
    const size_t gather = rank.start(group({0, 1}), "all_gather", 3 * kGigabyte / 2);  // 1.5 s on idle links
    rank.compute(2).wait(gather);
  }
  const Replay step = replayed(ranks, on);
  EXPECT_DOUBLE_EQ(step.step_seconds, 2.5);  // after 2 s, 1 s of it is done
  EXPECT_DOUBLE_EQ(step.ranks[0].exposed("tp"), 0.5);
  EXPECT_DOUBLE_EQ((step.ranks[0].transfers.at({"tp", "all_gather"}).seconds), 2.5);
}

TEST(Replay, CallsOfAGroupAreSequentialAndGroupsShareLinks) {
  std::vector<Rank> ranks(4);
  for (size_t i = 0; i < 4; ++i) {
    const bool first = i < 2;
    const Channel mine = first ? group({0, 1}) : group({2, 3});
    const size_t one = ranks[i].start(mine, "all_gather", kGigabyte);
    // Ranks 0 and 1 call on the same group again; 2 and 3 on another group of the same ranks.
    const size_t two = ranks[i].start(first ? mine : group({2, 3}, "cp"), "all_gather", kGigabyte);
    ranks[i].wait(one).compute(0.25).wait(two);
  }
  const Replay step = replayed(ranks);
  EXPECT_DOUBLE_EQ(step.ranks[0].end, 2);
  EXPECT_DOUBLE_EQ(step.ranks[0].exposed("tp"), 1.75);  // 1 s, and 0.75 s of the second call
  EXPECT_DOUBLE_EQ(step.ranks[2].end, 2.25);
  EXPECT_DOUBLE_EQ(step.ranks[2].exposed("tp"), 2);
  EXPECT_DOUBLE_EQ(step.ranks[2].exposed("cp"), 0);
}

// Ranks 0 to 3 exchange over the network, while 0 and 1 exchange within their node.
TEST(Replay, TransfersShareOnlyTheLinksThatBothUse) {
  std::vector<Rank> ranks(4);
  const Channel between = group({0, 2}, "dp_shard");
  const size_t slow = ranks[0].start(between, "all_gather", kGigabyte);
  ranks[2].call(between, "all_gather", kGigabyte);
  ranks[0].call(group({0, 1}), "all_gather", kGigabyte).wait(slow);
  ranks[1].call(group({0, 1}), "all_gather", kGigabyte);
  const Replay step = replayed(ranks);
  EXPECT_DOUBLE_EQ(step.ranks[1].end, 1);
  EXPECT_DOUBLE_EQ(step.ranks[2].end, 2);
}

TEST(Replay, AMessageWaitsForItsReceive) {
  std::vector<Rank> ranks(2);
  const size_t sent = ranks[0].start(message(0, 1), "send", kGigabyte);
  ranks[0].wait(sent);
  ranks[1].compute(2).call(message(0, 1), "receive", kGigabyte);
  const Replay late = replayed(ranks);
  EXPECT_DOUBLE_EQ(late.ranks[0].waiting, 2);
  EXPECT_DOUBLE_EQ(late.step_seconds, 3);

  ranks[1] = {};
  const size_t received = ranks[1].start(message(0, 1), "receive", kGigabyte);
  ranks[1].compute(2).wait(received);
  const Replay early = replayed(ranks);
  EXPECT_DOUBLE_EQ(early.ranks[0].end, 1);
  EXPECT_DOUBLE_EQ(early.step_seconds, 2);
}

TEST(Replay, MessagesInBothDirectionsDoNotShareALink) {
  std::vector<Rank> ranks(2);
  for (const int64_t rank : {0, 1}) {
    Rank& one = ranks[static_cast<size_t>(rank)];
    const size_t there = one.start(message(0, 1), rank == 0 ? "send" : "receive", kGigabyte);
    const size_t back = one.start(message(1, 0), rank == 0 ? "receive" : "send", kGigabyte);
    one.wait(there).wait(back);
  }
  EXPECT_DOUBLE_EQ(replayed(ranks).step_seconds, 1);
  plan::Machine apart = machine();
  apart.ranks_per_node = 1;
  apart.network_latency_us = 500'000;
  EXPECT_DOUBLE_EQ(replayed(ranks, apart).step_seconds, 2.5);
}

TEST(Replay, NamesRanksThatDisagreeOrWaitForEachOther) {
  std::vector<Rank> ranks(2);
  ranks[0].call(group({0, 1}), "all_gather", 8);
  ranks[1].call(group({0, 1}), "all_gather", 16);
  EXPECT_THAT(
      [&] { replayed(ranks); },
      ThrowsMessage<Error>(HasSubstr("axis tp: rank 1 calls all_gather of 16 bytes where another rank calls all_gather "
                                     "of 8")));
  ranks = std::vector<Rank>(2);
  ranks[0].call(message(1, 0), "receive", 8).call(message(0, 1), "send", 8);
  ranks[1].call(message(0, 1), "receive", 8).call(message(1, 0), "send", 8);
  EXPECT_THAT(
      [&] { replayed(ranks); },
      ThrowsMessage<Error>(AllOf(HasSubstr("rank 0 for receive on axis pp"), HasSubstr("rank 1 for receive"))));
  ranks = std::vector<Rank>(2);
  ranks[0].start(group({0, 1}), "all_gather", 8);
  EXPECT_THAT([&] { replayed(ranks); }, ThrowsMessage<Error>(HasSubstr("1 of the ranks never started it")));
}

}  // namespace
}  // namespace lehr::emulate
