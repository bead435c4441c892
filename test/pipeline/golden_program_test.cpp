// Golden programs: a change of a schedule builder or of the order of communication shows here.
#include <gtest/gtest.h>

#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/schedules.h"

namespace lehr::pipeline {
namespace {

std::string schedule_named(const char* name, int64_t ranks, int64_t stages_per_rank, int64_t microbatches) {
  return to_text(add_communication(build_program({parse_schedule(name), ranks, stages_per_rank, microbatches})));
}

TEST(GoldenProgram, GPipe) {
  EXPECT_EQ(
      schedule_named("GPipe", 2, 1, 2),
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0\n"
      "1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0\n");
}

TEST(GoldenProgram, Inference) {
  EXPECT_EQ(
      schedule_named("Inference", 2, 1, 2),
      "0F0 0SEND_F0 0F1 0SEND_F1\n"
      "1RECV_F0 1F0 1RECV_F1 1F1\n");
}

TEST(GoldenProgram, LoopedBfsWithTwoStages) {
  EXPECT_EQ(
      schedule_named("LoopedBFS", 2, 2, 2),
      "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B1 2B1 2SEND_B1 2RECV_B0 2B0 "
      "2SEND_B0 0RECV_B1 0B1 0RECV_B0 0B0\n"
      "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3F1 3B1 3SEND_B1 1RECV_B1 3B0 3SEND_B0 "
      "1RECV_B0 1B1 1SEND_B1 1B0 1SEND_B0\n");
}

// Written by hand, from the rule that rank r holds at most P - r micro-batches.
TEST(GoldenProgram, Classic1F1B) {
  EXPECT_EQ(
      schedule_named("1F1B", 2, 1, 4),
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0F3 0SEND_F3 0RECV_B2 0B2 0RECV_B3 0B3\n"
      "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1RECV_F3 1B2 1SEND_B2 1F3 1B3 1SEND_B3\n");
}

TEST(GoldenProgram, InterleavedZeroBubbleWithOneStage) {
  EXPECT_EQ(
      schedule_named("InterleavedZeroBubble", 2, 1, 4),
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0F2 0SEND_F2 0I1 0W1 0RECV_B2 0F3 0SEND_F3 0I2 0W2 "
      "0RECV_B3 0I3 0W3\n"
      "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1RECV_F2 1W0 1F2 1I2 1SEND_B2 1RECV_F3 1W1 1F3 1I3 "
      "1SEND_B3 1W2 1W3\n");
}

TEST(GoldenProgram, Interleaved1F1B) {
  EXPECT_EQ(
      schedule_named("Interleaved1F1B", 2, 2, 4),
      "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B0 0F2 0SEND_F2 2B0 2SEND_B0 "
      "2RECV_B1 0F3 0SEND_F3 2RECV_F2 2B1 2SEND_B1 0RECV_B0 2F2 2SEND_F2 2RECV_F3 0B0 0RECV_B1 2F3 2SEND_F3 0B1 "
      "2RECV_B2 2B2 2SEND_B2 2RECV_B3 2B3 2SEND_B3 0RECV_B2 0B2 0RECV_B3 0B3\n"
      "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3B0 3SEND_B0 1RECV_F2 3F1 1RECV_B0 3B1 "
      "3SEND_B1 1RECV_F3 1F2 1SEND_F2 1RECV_B1 1B0 1SEND_B0 3RECV_F2 1F3 1SEND_F3 1B1 1SEND_B1 3RECV_F3 3F2 3B2 "
      "3SEND_B2 1RECV_B2 3F3 3B3 3SEND_B3 1RECV_B3 1B2 1SEND_B2 1B3 1SEND_B3\n");
}

TEST(GoldenProgram, ZeroBubbleVWithOneMicrobatch) {
  EXPECT_EQ(
      schedule_named("ZBVZeroBubble", 2, 2, 1),
      "0F0 0SEND_F0 3RECV_F0 3F0 3I0 3SEND_B0 3W0 0RECV_B0 0I0 0W0\n"
      "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2I0 2W0 1I0 1SEND_B0 1W0\n");
}

TEST(GoldenProgram, ZeroBubbleV) {
  EXPECT_EQ(
      schedule_named("ZBVZeroBubble", 2, 2, 4),
      "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 0F2 0SEND_F2 3F0 3RECV_F1 3I0 3SEND_B0 3W0 3F1 3I1 3SEND_B1 0RECV_B0 "
      "3W1 0F3 0SEND_F3 3RECV_F2 0I0 0W0 3F2 3I2 3SEND_B2 0RECV_B1 3W2 0I1 3RECV_F3 0W1 3F3 3I3 3SEND_B3 "
      "0RECV_B2 3W3 0I2 0RECV_B3 0W2 0I3 0W3\n"
      "1RECV_F0 1F0 1RECV_F1 2F0 2SEND_F0 1RECV_F2 1F1 2F1 2SEND_F1 2RECV_B0 2I0 2W0 1F2 2RECV_B1 1I0 1SEND_B0 "
      "1W0 1RECV_F3 2F2 2SEND_F2 2I1 2W1 1F3 2RECV_B2 1I1 1SEND_B1 1W1 2F3 2SEND_F3 2I2 2W2 2RECV_B3 1I2 "
      "1SEND_B2 2I3 1I3 1SEND_B3 1W2 2W3 1W3\n");
}

TEST(GoldenProgram, DualPipeV) {
  EXPECT_EQ(
      schedule_named("DualPipeV", 2, 2, 4),
      "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 0F2 0SEND_F2 3F0 3RECV_F1 3I0 3SEND_B0 3W0 3F1 3RECV_F2 0RECV_B0 "
      "0F3|3B1 0SEND_F3 3SEND_B1 3F2|0B0 3RECV_F3 0RECV_B1 3B2 3SEND_B2 3F3|0B1 0RECV_B2 3B3 3SEND_B3 0I2 "
      "0RECV_B3 0W2 0I3 0W3\n"
      "1RECV_F0 1F0 1RECV_F1 2F0 2SEND_F0 1RECV_F2 1F1 2F1 2SEND_F1 2RECV_B0 1F2 2B0 2F2|1B0 2SEND_F2 1SEND_B0 "
      "1RECV_F3 2RECV_B1 1F3|2B1 2F3|1B1 2SEND_F3 1SEND_B1 2RECV_B2 2B2 1B2 1SEND_B2 2RECV_B3 2I3 1I3 1SEND_B3 "
      "2W3 1W3\n");
}

TEST(GoldenProgram, ZeroBubbleH1IsInterleavedZeroBubbleWithOneStage) {
  EXPECT_EQ(schedule_named("ZBH1", 4, 1, 9), schedule_named("InterleavedZeroBubble", 4, 1, 9));
}

}  // namespace
}  // namespace lehr::pipeline
