#include "lehr/meter/memory_meter.h"

#include <gtest/gtest.h>

#include <thread>

#include "lehr/base/error.h"

namespace lehr {
namespace {

at::TensorOptions on(at::DeviceType device) {
  return at::TensorOptions().device(device).dtype(at::kFloat);
}

class MeterOf : public ::testing::TestWithParam<at::DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Devices, MeterOf, ::testing::Values(at::kMeta, at::kCPU), [](const auto& device) {
  return c10::DeviceTypeName(device.param, true);
});

TEST_P(MeterOf, CountsLiveBytesAndTheirPeak) {
  const at::Tensor before = at::empty({1000}, on(GetParam()));
  MemoryMeter meter(GetParam());
  EXPECT_EQ(meter.now(), 0);
  at::Tensor kept = at::empty({100}, on(GetParam()));
  {
    const at::Tensor passing = at::empty({50}, on(GetParam()));
    EXPECT_EQ(meter.now(), 600);
  }
  EXPECT_EQ(meter.now(), 400);
  EXPECT_EQ(meter.peak(), 600);
  meter.reset_peak();
  EXPECT_EQ(meter.peak(), 400);
  const at::Tensor view = kept.view({10, 10}).narrow(0, 2, 3);
  kept.reset();
  EXPECT_EQ(meter.now(), 400);  // the view holds the memory
}

TEST_P(MeterOf, CountsResultsOfOperators) {
  const at::Tensor a = at::empty({8, 16}, on(GetParam())), b = at::empty({16, 4}, on(GetParam()));
  const MemoryMeter meter(GetParam());
  const at::Tensor product = a.mm(b);
  EXPECT_EQ(meter.now(), 8 * 4 * 4);
}

TEST_P(MeterOf, CountsItsOwnThreadOnly) {
  const MemoryMeter meter(GetParam());
  std::thread([&] {
    const MemoryMeter theirs(GetParam());
    const at::Tensor tensor = at::empty({100}, on(GetParam()));
    EXPECT_EQ(theirs.now(), 400);
  }).join();
  EXPECT_EQ(meter.peak(), 0);
}

TEST_P(MeterOf, SeesItsMemoryFreedByAnotherThread) {
  const MemoryMeter meter(GetParam());
  at::Tensor tensor = at::empty({100}, on(GetParam()));
  std::thread([&] {
    const MemoryMeter theirs(GetParam());
    tensor.reset();
    EXPECT_EQ(theirs.now(), 0);
  }).join();
  EXPECT_EQ(meter.now(), 0);
}

TEST_P(MeterOf, LeavesOutAllocationsThatAreMarkedAsNotCounted) {
  const MemoryMeter meter(GetParam());
  const at::Tensor mine = at::empty({25}, on(GetParam()));
  at::Tensor nobodys;
  {
    const NotCounted scope;
    nobodys = at::empty({100}, on(GetParam()));
    const at::Tensor passing = at::empty({50}, on(GetParam()));
  }
  EXPECT_EQ(meter.now(), 100);
  nobodys.reset();
  EXPECT_EQ(meter.now(), 100);
  EXPECT_EQ(meter.peak(), 100);
}

TEST_P(MeterOf, CountsItsMemoryThatIsFreedInAnUncountedScope) {
  const MemoryMeter meter(GetParam());
  at::Tensor mine = at::empty({25}, on(GetParam()));
  const NotCounted scope;
  mine.reset();
  EXPECT_EQ(meter.now(), 0);
}

TEST(MemoryMeter, TensorsMayOutliveIt) {
  at::Tensor tensor;
  {
    const MemoryMeter meter(at::kMeta);
    tensor = at::empty({100}, on(at::kMeta));
  }
  tensor.reset();
}

TEST(MemoryMeter, RefusesOtherDevices) {
  EXPECT_THROW(MemoryMeter meter(at::DeviceType::CUDA), Error);
}

}  // namespace
}  // namespace lehr
