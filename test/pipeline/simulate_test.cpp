#include "lehr/pipeline/simulate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "lehr/base/file.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/schedules.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

using testing::HasSubstr;

// Times are sums of a few hundred whole numbers or quarters, which are exact; only the last division rounds.
constexpr double kRounding = 1e-12;

Program build(const char* name, int64_t ranks, int64_t stages_per_rank, int64_t microbatches) {
  return build_program({parse_schedule(name), ranks, stages_per_rank, microbatches});
}

double bubble(
    const char* name, int64_t ranks, int64_t stages_per_rank, int64_t microbatches, PipelineCosts costs = {}) {
  return simulate(build(name, ranks, stages_per_rank, microbatches), costs).bubble_share();
}

std::string refusal(const Program& program, const PipelineCosts& costs) {
  return error_of([&] { simulate(program, costs); });
}

TEST(Simulate, TimesTwoRanksAsComputedByHand) {
  PipelineCosts costs{
      .transfer = [](int64_t from, int64_t to) { return from < to ? 0.5 : 1.0; },
      .launch_latency = 0.25,
      .update = 0.5};
  const Timeline timeline = simulate(build("1F1B", 2, 1, 1), costs);
  struct Expected {
    const char* action;
    double start, end;
  };
  // 0F0 0SEND_F0 0RECV_B0 0B0, and 1RECV_F0 1F0 1B0 1SEND_B0
  const std::vector<std::vector<Expected>> expected = {
      {{"0F0", 0, 1}, {"0SEND_F0", 1.25, 1.75}, {"0RECV_B0", 5, 6}, {"0B0", 6, 8}},
      {{"1RECV_F0", 1.25, 1.75}, {"1F0", 1.75, 2.75}, {"1B0", 2.75, 4.75}, {"1SEND_B0", 5, 6}}};
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(timeline.ranks[rank].size(), expected[rank].size());
    for (size_t i = 0; i < expected[rank].size(); ++i) {
      const TimedAction& timed = timeline.ranks[rank][i];
      EXPECT_EQ(to_string(timed.action), expected[rank][i].action);
      EXPECT_EQ(timed.start, expected[rank][i].start) << expected[rank][i].action;
      EXPECT_EQ(timed.end, expected[rank][i].end) << expected[rank][i].action;
      EXPECT_EQ(timed.entry, static_cast<int64_t>(i));
    }
  }
  EXPECT_EQ(timeline.makespan, 8.5);
  EXPECT_EQ(timeline.busy, (std::vector<double>{3.5, 3.5}));
  EXPECT_NEAR(timeline.bubble_share(), 1 - 7 / 17.0, kRounding);
}

// A clock whose actions take their stage's number + 1 seconds, and wait until second 5; a rank ends with its number
// + 1.
class CountingClock : public ActionClock {
 public:
  double act(int64_t rank, const Action& action, double start) override {
    asked.push_back(fmt::format("rank {}: {} at {}", rank, to_string(action), start));
    return static_cast<double>(action.stage + 1) + (start < 5 ? 5 - start : 0);
  }
  double finish(int64_t rank, double start) override {
    asked.push_back(fmt::format("rank {} from {}", rank, start));
    return static_cast<double>(rank + 1);
  }
  std::vector<std::string> asked = {};
};

TEST(Simulate, AsksAClockForTheSecondsOfActions) {
  const auto clock = std::make_shared<CountingClock>();
  const Timeline timeline = simulate(parse_program("0F0 0B0\n1F0 1B0"), {.clock = clock, .update = 0.5});
  EXPECT_THAT(
      clock->asked,
      testing::ElementsAre(
          "rank 0: 0F0 at 0",
          "rank 1: 1F0 at 6",
          "rank 1: 1B0 at 8",
          "rank 0: 0B0 at 10",
          "rank 0 from 11",
          "rank 1 from 10"));
  EXPECT_EQ(timeline.makespan, 12.5);
  EXPECT_EQ(timeline.last_end, (std::vector<double>{12, 12}));
  EXPECT_EQ(timeline.busy, (std::vector<double>{6 + 1 + 1 + 0.5, 2 + 2 + 2 + 0.5}));
}

TEST(Simulate, AsksAClockForMembersOfAnEntryOneAfterTheOther) {
  const auto clock = std::make_shared<CountingClock>();
  simulate(parse_program("0F0 0F1|0B0 0B1"), {.clock = clock});
  EXPECT_THAT(
      clock->asked,
      testing::ElementsAre(
          "rank 0: 0F0 at 0", "rank 0: 0F1 at 6", "rank 0: 0B0 at 7", "rank 0: 0B1 at 8", "rank 0 from 9"));
}

TEST(Simulate, SerializesTransfersBetweenTwoRanks) {
  PipelineCosts costs{.forward = {0.25}, .transfer = [](int64_t, int64_t) { return 1.0; }, .launch_latency = 0.5};
  const Timeline timeline = simulate(build("Inference", 2, 1, 3), costs);
  std::vector<double> arrivals;
  for (const TimedAction& timed : timeline.ranks[1]) {
    if (timed.action.is_receive()) {
      arrivals.push_back(timed.end);
    }
  }
  EXPECT_EQ(arrivals, (std::vector<double>{1.75, 2.75, 3.75}));  // only the first one shows the latency
}

TEST(Simulate, OverlapsTheActionsOfAnEntry) {
  const Program program = parse_program("0F0 0F1|0B0 0B1");
  PipelineCosts costs{.forward = {2.0}};
  EXPECT_EQ(simulate(program, costs).makespan, 8);
  costs.overlap = 1;
  const Timeline whole = simulate(program, costs);
  EXPECT_EQ(whole.makespan, 6);
  EXPECT_EQ(whole.ranks[0][2].lane, 1);
  EXPECT_EQ(whole.ranks[0][2].lanes, 2);
  costs.overlap = 0.25;
  EXPECT_EQ(simulate(program, costs).makespan, 7.5);
}

TEST(Simulate, UsesCostsPerStage) {
  PipelineCosts costs{.forward = {1, 2}, .backward_input = {4, 8}, .backward_weight = {16, 32}};
  EXPECT_EQ(simulate(parse_program("0F0 0I0 0W0\n1F0 1B0"), costs).makespan, 1 + 2 + 8 + 32 + 4 + 16);
}

TEST(Simulate, AgreesWithTheClosedFormsOfBubbles) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t microbatches = ranks; microbatches <= 32; ++microbatches) {
      const auto waits = static_cast<double>(ranks - 1);
      const auto m = static_cast<double>(microbatches);
      EXPECT_NEAR(bubble("GPipe", ranks, 1, microbatches), waits / (m + waits), kRounding);
      EXPECT_NEAR(bubble("1F1B", ranks, 1, microbatches), waits / (m + waits), kRounding);
      // (P - 1) (F + I - W) remains of (P - 1) (F + I + W).
      EXPECT_NEAR(bubble("ZBH1", ranks, 1, microbatches), waits / (3 * m + waits), kRounding)
          << ranks << " " << microbatches;
      for (const char* name : {"ZBVZeroBubble", "InterleavedZeroBubble"}) {
        if (microbatches >= 2 * ranks) {
          EXPECT_NEAR(bubble(name, ranks, 2, microbatches), waits / (6 * m + waits), kRounding)
              << name << " " << ranks << " " << microbatches;
        }
      }
      for (int64_t stages = 2; microbatches % ranks == 0 && stages <= 4; ++stages) {
        const double work = static_cast<double>(stages) * m;
        EXPECT_NEAR(bubble("Interleaved1F1B", ranks, stages, microbatches), waits / (work + waits), kRounding);
      }
    }
  }
}

TEST(Simulate, HasThePublishedBubblesForFourRanks) {
  EXPECT_NEAR(bubble("1F1B", 4, 1, 32), 0.086, 0.0005);
  EXPECT_NEAR(bubble("Interleaved1F1B", 4, 2, 32), 0.045, 0.0005);
  EXPECT_LE(bubble("ZBVZeroBubble", 4, 2, 32), 0.025);
}

// If the micro-batches do not divide into rounds, the time is at most that of complete rounds.
TEST(Simulate, PartialRoundsAreNotSlowerThanCompleteOnes) {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t microbatches = ranks; microbatches <= 32; ++microbatches) {
      const int64_t filled = (microbatches + ranks - 1) / ranks * ranks;
      EXPECT_LE(
          simulate(build("Interleaved1F1B", ranks, 2, microbatches), {}).makespan,
          simulate(build("Interleaved1F1B", ranks, 2, filled), {}).makespan)
          << ranks << " " << microbatches;
    }
  }
}

// "| 1F1B | **1** | loop | 4 3 2 1 | 8.6 % | 8.6 % | 12.9 % | one forward, ... |"
std::string row_of_the_documentation(const ScheduleInfo& info) {
  const Program program = build_program({info.schedule, 4, info.default_stages_per_rank, 32});
  std::string stages = fmt::format("**{}**", info.default_stages_per_rank);
  if (info.max_stages_per_rank == 0) {
    stages = info.min_stages_per_rank < info.default_stages_per_rank
                 ? fmt::format("{}, {}, ...", info.min_stages_per_rank, stages)
                 : stages + ", ...";
  }
  std::string held;
  for (const int64_t peak : peak_forwards(program)) {
    held += fmt::format("{} ", peak);
  }
  const double share = 1.0 / static_cast<double>(info.default_stages_per_rank);
  PipelineCosts costs{.forward = {share}, .backward_input = {share}, .backward_weight = {share}};
  const Timeline fast = simulate(program, costs);
  costs.transfer = [](int64_t, int64_t) { return 0.1; };
  return fmt::format(
      "| {} | {} | {} | {}| {:.1f} % | {:.1f} % | {:.1f} % | {} |\n",
      info.name,
      stages,
      name_of(info.placement),
      held,
      100 * fast.bubble_share(),
      100 * std::abs(fast.bubble_share_without_barrier()),  // not "-0.0"
      100 * simulate(program, costs).bubble_share(),
      info.about);
}

TEST(Simulate, EqualsTheTableOfTheDocumentation) {
  const std::string page = read_file(LEHR_SOURCE_DIR "/docs/pipeline.md");
  for (const ScheduleInfo& info : all_schedules()) {
    if (info.has_backward) {
      EXPECT_THAT(page, HasSubstr(row_of_the_documentation(info)));
    }
  }
}

TEST(Simulate, OrdersTheZeroBubbleSchedules) {
  const auto spans = [](const char* name, int64_t ranks) {
    return simulate(build(name, ranks, 1, 4 * ranks), {}).bubble_share_without_barrier();
  };
  // Different costs of dgrad and wgrad, and transfers that take time, as in practice.
  const PipelineCosts real{
      .forward = {1.0},
      .backward_input = {1.25},
      .backward_weight = {0.75},
      .transfer = [](int64_t, int64_t) { return 0.125; },
  };
  for (const int64_t ranks : {2, 4, 8}) {
    EXPECT_LT(spans("ZBH1", ranks), spans("1F1B", ranks));
    EXPECT_LT(spans("ZBH2", ranks), spans("ZBH1", ranks));
    EXPECT_NEAR(spans("ZBH2", ranks), 0, kRounding);
    EXPECT_LT(bubble("ZBH1", ranks, 1, 4 * ranks, real), bubble("1F1B", ranks, 1, 4 * ranks, real));
    EXPECT_LT(bubble("ZBH2", ranks, 1, 4 * ranks, real), bubble("ZBH1", ranks, 1, 4 * ranks, real));
  }
}

TEST(Simulate, HoldsTheActivationsOfLiveForwards) {
  for (const ScheduleInfo& info : all_schedules()) {
    if (!info.has_backward) {
      continue;
    }
    const Program program = build_program({info.schedule, 4, info.default_stages_per_rank, 16});
    PipelineCosts costs{.activation_bytes = {1.0}};
    const auto check = [&](const std::vector<int64_t>& alive) {
      const Timeline timeline = simulate(program, costs);
      for (size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(timeline.peak_memory()[rank], static_cast<double>(alive[rank])) << info.name << " rank " << rank;
        EXPECT_EQ(timeline.memory[rank].back().bytes, 0) << info.name << " rank " << rank;
      }
    };
    check(peak_forwards(program));
    costs.kept_after_dgrad = 0;
    check(peak_forwards_until_input(program));
  }
}

TEST(Simulate, HoldsBuffersAtBothEndsOfATransfer) {
  PipelineCosts costs{.transfer = [](int64_t, int64_t) { return 0.5; }, .boundary_bytes = {8.0}};
  const Timeline timeline = simulate(build("1F1B", 2, 1, 1), costs);
  // 0F0 0..1, send 1..1.5, 1F0 1.5..2.5, 1B0 2.5..4.5, send back 4.5..5, 0B0 5..7
  const auto text = [](const std::vector<MemoryPoint>& points) {
    std::string result;
    for (const MemoryPoint& point : points) {
      result += fmt::format("{}:{} ", point.seconds, point.bytes);
    }
    return result;
  };
  EXPECT_EQ(text(timeline.memory[0]), "1:8 1.5:0 4.5:8 7:0 ");
  EXPECT_EQ(text(timeline.memory[1]), "1:8 1.5:0 4.5:8 5:0 ");
}

TEST(Simulate, FreesActivationsImmediatelyWithoutABackward) {
  const Timeline timeline = simulate(build("Inference", 2, 1, 8), {.activation_bytes = {3.0}});
  EXPECT_EQ(timeline.peak_memory(), (std::vector<double>{3, 3}));
}

TEST(Simulate, IsTheSameWithExplicitCommunication) {
  const Program program = build("ZBVZeroBubble", 4, 2, 8);
  EXPECT_EQ(simulate(program, {}).program, add_communication(program));
  EXPECT_EQ(simulate(add_communication(program), {}).makespan, simulate(program, {}).makespan);
}

TEST(Simulate, HandlesTheLargestPipelines) {
  const Timeline timeline = simulate(build("Interleaved1F1B", 64, 2, 512), {});
  EXPECT_NEAR(timeline.bubble_share(), 63.0 / (1024 + 63), kRounding);
}

TEST(Simulate, RefusesInvalidCosts) {
  const Program program = build("1F1B", 4, 1, 4);
  EXPECT_EQ(
      refusal(program, {.forward = {1, 2}}),
      "pipeline costs: expected 1 or 4 values for forward, one per stage, found 2");
  EXPECT_THAT(refusal(program, {.backward_input = {-1}}), HasSubstr("number from 0 for backward_input, found -1"));
  EXPECT_THAT(refusal(program, {.overlap = 1.5}), HasSubstr("overlap from 0 to 1, found 1.5"));
  EXPECT_THAT(
      refusal(program, {.transfer = [](int64_t, int64_t) { return std::nan(""); }}), HasSubstr("transfer, found nan"));
  EXPECT_THAT(refusal(parse_program("0F0\n1F0 1B0"), {}), HasSubstr("stage 0 has no backward"));
}

}  // namespace
}  // namespace lehr::pipeline
