// The throughput meter on a fake clock, and plausible figures of this machine.
#include "lehr/metric/throughput.h"

#include <gtest/gtest.h>

namespace lehr::metric {
namespace {

TEST(ThroughputMeter, DividesTokensByTimeOverItsWindow) {
  double now = 100;
  ThroughputMeter meter(2, [&] { return now; });
  EXPECT_EQ(meter.tokens_per_second(), 0);
  now += 10;  // a slow first step, which leaves the window
  meter.step(1000);
  EXPECT_EQ(meter.tokens_per_second(), 100);
  now += 1;
  meter.step(1000, 4);
  now += 3;
  meter.step(1000, 6);
  EXPECT_EQ(meter.tokens_per_second(), 500);
  EXPECT_EQ(meter.flops_per_second(), 2.5);
  EXPECT_EQ(meter.step_seconds(), 2);
  EXPECT_EQ(meter.last_step_seconds(), 3);
}

TEST(ThroughputMeter, LeavesOutPauses) {
  double now = 0;
  ThroughputMeter meter(10, [&] { return now; });
  now += 1;
  meter.pause();  // in the middle of a step
  meter.pause();
  now += 50;
  meter.resume();
  meter.resume();
  now += 1;
  meter.step(100);
  EXPECT_EQ(meter.tokens_per_second(), 50);
  meter.pause();  // between steps
  now += 50;
  meter.resume();
  now += 2;
  meter.step(100);
  EXPECT_EQ(meter.tokens_per_second(), 50);
  EXPECT_EQ(meter.step_seconds(), 2);
}

TEST(ThroughputMeter, CountsTheTimeBeforeAPauseWithinAStep) {
  double now = 0;
  ThroughputMeter meter(10, [&] { return now; });
  now += 4;
  meter.pause();
  now += 3;
  meter.step(8);
  EXPECT_EQ(meter.last_step_seconds(), 4);
  now += 3;
  meter.resume();
  now += 2;
  meter.step(8);
  EXPECT_EQ(meter.last_step_seconds(), 2);
}

TEST(ModelFlopsUtilization, IsTheModelFlopsOverThePeak) {
  EXPECT_DOUBLE_EQ(model_flops_utilization(6e11, 1e12), 0.6);
  EXPECT_EQ(model_flops_utilization(6e11, 0), 0);
}

TEST(ThroughputMeter, RestartsTheClockOfAStep) {
  double now = 10;
  ThroughputMeter meter(20, [&] { return now; });
  now = 15;  // setup
  meter.restart();
  now = 17;
  meter.step(8);
  EXPECT_EQ(meter.last_step_seconds(), 2);
}

TEST(ProcessMemory, SeesAnAllocation) {
  const ProcessMemory before = process_memory();
  ASSERT_GT(before.resident, 0);
  EXPECT_GE(before.peak_resident, before.resident);
  constexpr int64_t kBytes = 64 << 20;
  const at::Tensor block = at::ones({kBytes}, at::kByte);
  const ProcessMemory after = process_memory();
  EXPECT_GT(after.resident - before.resident, kBytes / 2);
  EXPECT_GT(after.peak_resident, kBytes);
}

}  // namespace
}  // namespace lehr::metric
