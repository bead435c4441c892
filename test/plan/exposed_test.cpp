#include "lehr/plan/exposed.h"

#include <gtest/gtest.h>

namespace lehr::plan {
namespace {

ActionEvent start(int64_t call) {
  return {.started = call};
}
ActionEvent wait(int64_t call) {
  return {.waited = call};
}

// Calls of one rank, in seconds of the links within a node, or between nodes.
struct Example {
  std::vector<ActionEvent> events;
  std::vector<double> computing;  // before each event
  std::vector<Communication> calls;
  std::vector<LinkTime> links;
  ExposedTime time(double overlap = 1) const {
    ActionMeasurement action;
    action.events = events;
    action.calls = calls;
    return exposed_time(action, computing, links, overlap);
  }
};

Communication call(const std::string& axes, const std::string& collective = "all_gather") {
  return {.axes = axes, .collective = collective, .group_size = 2, .bytes = 1, .calls = 1};
}

TEST(ExposedTime, IsTheWaitThatComputationDoesNotCover) {
  const Example one{{start(0), wait(0)}, {1, 2}, {call("fsdp")}, {{.latency = 0.5, .node = 3}}};
  EXPECT_DOUBLE_EQ(one.time().seconds, 4.5);
  EXPECT_DOUBLE_EQ(one.time().by_call[0], 1.5);
  // The latency passes at its own speed; then 1.5 s of computation cover 0.75 s.
  EXPECT_DOUBLE_EQ(one.time(/*overlap=*/0.5).by_call[0], 2.25);
  EXPECT_DOUBLE_EQ(one.time(/*overlap=*/0).by_call[0], 3);
}

TEST(ExposedTime, CallsOfAGroupAreSequentialAndOthersShareTheirLink) {
  Example two{
      {start(0), start(1), wait(0), wait(1)}, {0, 0, 0, 0}, {call("fsdp"), call("fsdp")}, {{.node = 1}, {.node = 1}}};
  EXPECT_DOUBLE_EQ(two.time().by_call[0], 1);
  EXPECT_DOUBLE_EQ(two.time().by_call[1], 1);
  two.calls[1].axes = "tp";
  EXPECT_DOUBLE_EQ(two.time().by_call[0], 2);
  EXPECT_DOUBLE_EQ(two.time().by_call[1], 0);
  two.links[1] = {.network = 1};
  EXPECT_DOUBLE_EQ(two.time().by_call[0], 1);
  two.calls = {call("cp", "send"), call("cp", "receive")};
  two.links[1] = {.node = 1};
  EXPECT_DOUBLE_EQ(two.time().seconds, 1);  // in both directions at once
}

TEST(ExposedTime, KnowsTheEndOfEachEvent) {
  const Example one{{start(0), {}, wait(0)}, {1, 1, 0}, {call("fsdp")}, {{.node = 4}}};
  EXPECT_EQ(one.time().by_event, (std::vector<double>{1, 2, 5}));
}

}  // namespace
}  // namespace lehr::plan
