#include "lehr/pipeline/schedules.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/communication.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

using testing::HasSubstr;

Program build(const char* name, int64_t ranks, int64_t stages_per_rank, int64_t microbatches) {
  return build_program({parse_schedule(name), ranks, stages_per_rank, microbatches});
}

TEST(Topology, LaysStagesInALoopOrAV) {
  EXPECT_EQ(place_stages(StageOrder::loop, 4, 2), (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(place_stages(StageOrder::v, 4, 2), (std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(place_stages(StageOrder::v, 2, 3), (std::vector<int64_t>{0, 1, 1, 0, 0, 1}));
  EXPECT_THROW(place_stages(StageOrder::v, 0, 2), Error);
  EXPECT_THROW(place_stages(StageOrder::loop, 2, 0), Error);
}

TEST(Schedules, AreFoundByNameInAnyCase) {
  for (const ScheduleInfo& info : all_schedules()) {
    EXPECT_EQ(parse_schedule(info.name), info.schedule);
    EXPECT_EQ(&schedule_info(info.schedule), &info);
  }
  EXPECT_EQ(parse_schedule("1f1b"), Schedule::one_f_one_b);
  EXPECT_EQ(parse_schedule("ZBVZEROBUBBLE"), Schedule::zero_bubble_v);
  EXPECT_EQ(
      error_of([] { parse_schedule("zvbzerobubble"); }),
      "pipeline schedule \"zvbzerobubble\": expected one of 1F1B, GPipe, LoopedBFS, Interleaved1F1B, "
      "InterleavedZeroBubble, ZBH1, ZBH2, ZBVZeroBubble, DualPipeV, Inference (forward only); did you mean ZBVZeroBubble?");
  EXPECT_THAT(error_of([] { parse_schedule("fastest"); }), testing::EndsWith("DualPipeV, Inference (forward only)"));
}

TEST(Schedules, RefuseUnsupportedNumbers) {
  EXPECT_EQ(
      error_of([] { build("1F1B", 4, 2, 8); }),
      "pipeline schedule 1F1B: expected exactly 1 stage per rank, found 2; with several stages per rank use "
      "Interleaved1F1B");
  EXPECT_THAT(error_of([] { build("Interleaved1F1B", 4, 1, 8); }), HasSubstr("at least 2 stages per rank, found 1"));
  EXPECT_THAT(error_of([] { build("ZBVZeroBubble", 4, 3, 8); }), HasSubstr("exactly 2 stages per rank, found 3"));
  EXPECT_EQ(
      error_of([] { build("DualPipeV", 4, 2, 7); }),
      "pipeline schedule DualPipeV: expected at least 8 micro-batches, two for each of 4 ranks, found 7; use more "
      "micro-batches or ZBVZeroBubble");
  EXPECT_THAT(error_of([] { build("GPipe", 0, 1, 7); }), HasSubstr("at least 1 rank, found 0"));
  EXPECT_THAT(error_of([] { build("GPipe", 4, 1, 0); }), HasSubstr("at least 1 micro-batch, found 0"));
}

// Every schedule of every size is complete, in order, on the right rank, in the same order at both ends of a transfer,
// and free of deadlock.
TEST(Schedules, AreRightForAllSmallSizes) {
  for (const ScheduleInfo& info : all_schedules()) {
    const int64_t most = info.max_stages_per_rank == 0 ? 3 : info.max_stages_per_rank;
    for (int64_t stages = info.min_stages_per_rank; stages <= most; ++stages) {
      for (int64_t ranks = 1; ranks <= 8; ++ranks) {
        const int64_t least = info.schedule == Schedule::dual_pipe_v ? 2 * ranks : 1;
        for (int64_t microbatches = least; microbatches <= 32; ++microbatches) {
          SCOPED_TRACE(fmt::format("{} x{} P={} M={}", info.name, stages, ranks, microbatches));
          const Program program = build_program({info.schedule, ranks, stages, microbatches});
          ASSERT_EQ(program.has_backward(), info.has_backward);
          ASSERT_EQ(program.rank_of_stage, place_stages(info.placement, ranks, stages));
          ASSERT_NO_THROW(check_program(add_communication(program)));  // checks `program` itself as well
        }
      }
    }
  }
}

TEST(Schedules, SplitBackwardOnlyIfTheySaySo) {
  for (const ScheduleInfo& info : all_schedules()) {
    const Program program = build_program({info.schedule, 2, info.default_stages_per_rank, 8});
    EXPECT_EQ(to_text(program).find('W') != std::string::npos, info.splits_backward) << info.name;
  }
}

TEST(Schedules, HoldThePublishedNumberOfForwards) {
  using Peaks = std::vector<int64_t>;
  const auto peaks = [](const char* name, int64_t stages) { return peak_forwards(build(name, 4, stages, 16)); };
  EXPECT_EQ(peaks("1F1B", 1), (Peaks{4, 3, 2, 1}));
  EXPECT_EQ(peaks("GPipe", 1), (Peaks{16, 16, 16, 16}));
  EXPECT_EQ(peaks("LoopedBFS", 2), (Peaks{32, 32, 32, 32}));
  EXPECT_EQ(peaks("Interleaved1F1B", 2), (Peaks{11, 9, 7, 5}));
  EXPECT_EQ(peaks("InterleavedZeroBubble", 1), (Peaks{4, 4, 4, 4}));
  EXPECT_EQ(peaks("InterleavedZeroBubble", 2), (Peaks{8, 8, 8, 8}));
  EXPECT_EQ(peaks("InterleavedZeroBubble", 3), (Peaks{12, 12, 12, 12}));
  EXPECT_EQ(peaks("ZBH1", 1), (Peaks{4, 4, 4, 4}));
  EXPECT_EQ(peaks("ZBH2", 1), (Peaks{7, 7, 7, 7}));
  EXPECT_EQ(peaks("ZBVZeroBubble", 2), (Peaks{8, 8, 8, 8}));
  EXPECT_EQ(peaks("DualPipeV", 2), (Peaks{9, 9, 9, 9}));
}

TEST(OneForwardOneBackward, HoldsAtMostTheNumberOfRanksAhead) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t microbatches = 1; microbatches <= 16; ++microbatches) {
      const auto peaks = peak_forwards(build("1F1B", ranks, 1, microbatches));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(peaks[static_cast<size_t>(rank)], std::min(ranks - rank, microbatches));
      }
    }
  }
}

TEST(Interleaved, PutsTheLargerRoundsFirst) {
  // 7 micro-batches over 3 ranks: rounds of 4 and 3.
  const Program program = build("Interleaved1F1B", 3, 2, 7);
  Actions forwards;
  for (const Actions& entry : program.ranks[0]) {
    std::copy_if(entry.begin(), entry.end(), std::back_inserter(forwards), [](const Action& action) {
      return action.kind == ActionKind::forward;
    });
  }
  EXPECT_EQ(to_string(forwards), "0F0|0F1|0F2|0F3|3F0|3F1|3F2|3F3|0F4|0F5|0F6|3F4|3F5|3F6");
}

}  // namespace
}  // namespace lehr::pipeline
