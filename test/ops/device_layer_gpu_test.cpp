// Streams, asynchronous copies, pinned buffers and CUDA graphs on a GPU: LibTorch's behind the interfaces whose rules
// test/memory/device_queues_test.cpp and recorded_work_test.cpp check on a recording fake. All of these tests skip
// without a GPU.
#include <gmock/gmock.h>

#include "lehr/memory/async_copy.h"
#include "lehr/memory/side_stream.h"
#include "lehr/memory/staged_copy.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/recorded_work.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops {
namespace {

class DeviceLayerOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }

  // Returns a vector of `value` that the device computes some milliseconds after the call: whoever reads it without a
  // wait finds something else.
  at::Tensor late(double value) const {
    at::Tensor zeros = at::zeros({2048, 2048}, on_gpu_);
    for (int i = 0; i < 100; ++i) {
      zeros = at::matmul(zeros, zeros);
    }
    return zeros[0] + value;
  }

  const at::Device device_{at::kCUDA, 0};
  const at::TensorOptions on_gpu_ = at::TensorOptions(at::kFloat).device(device_);
};

TEST_F(DeviceLayerOnAGpu, AsyncCopyHoldsWhatTheTensorHeldWhenItWasEnqueued) {
  const at::Tensor tensor = late(3);
  const AsyncCopy copy(tensor);
  tensor.fill_(5);
  const at::Tensor host = copy.wait();
  EXPECT_TRUE(host.is_cpu());
  EXPECT_TRUE(at::equal(host, at::full({2048}, 3.0F)));
}

TEST_F(DeviceLayerOnAGpu, SideStreamFollowsAndIsJoined) {
  SideStream beside(device_);
  const at::Tensor tensor = late(3);
  beside.follow();
  at::Tensor sum;
  beside.run([&] { sum = tensor + late(1); });
  beside.mark();
  beside.join();
  EXPECT_TRUE(at::equal((sum * 2).cpu(), at::full({2048}, 8.0F)));
  beside.wait();
}

TEST_F(DeviceLayerOnAGpu, CopiesThroughPinnedMemoryToTheDevice) {
  const at::Tensor host = at::arange(1 << 20, at::kFloat);
  const at::Tensor there = to_device_pinned(host, device_);
  EXPECT_TRUE(there.is_cuda());
  EXPECT_TRUE(at::equal(there.cpu(), host));
}

// 4 MB through 256 KiB of pinned memory, in another dtype.
TEST_F(DeviceLayerOnAGpu, StagedCopyFillsPageableMemory) {
  StagedCopy copies(device_queues(device_), 1 << 18);
  const at::Tensor first = late(7);
  const at::Tensor second = at::arange(1 << 20, on_gpu_);
  copies.follow();
  const at::Tensor first_target = at::empty({2048});
  const at::Tensor second_target = at::empty({1 << 20}, at::kDouble);
  copies.copy(first_target, first);
  copies.copy(second_target, second);
  copies.finish();
  EXPECT_TRUE(at::equal(first_target, at::full({2048}, 7.0F)));
  EXPECT_TRUE(at::equal(second_target, at::arange(1 << 20, at::kDouble)));
}

// A failed capture must leave nothing behind: neither the stream's capture mode nor memory that a later one needs.
TEST_F(DeviceLayerOnAGpu, GraphsAreRecordedAndReplayedAlsoAfterACaptureThatFailed) {
  const std::string problem = cuda::open_kernels();
  ASSERT_EQ(problem, "");
  const Recorder recorder = make_cuda_recorder(device_);
  const at::Tensor input = at::ones({64, 64}, on_gpu_);
  const Work work = [&] { return std::vector<at::Tensor>{at::matmul(input, input) + 1}; };
  recorder->warm_up([&] { work(); });
  EXPECT_ANY_THROW(recorder->record([&]() -> std::vector<at::Tensor> {
    const at::Tensor product = at::matmul(input, input);
    return {product * product.sum().item<double>()};  // a capture cannot read a value
  }));
  EXPECT_TRUE(at::equal((input + 1).cpu(), at::full({64, 64}, 2.0F)));  // the device still works
  const auto recorded = recorder->record(work);
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    input.fill_(value);
    recorded->replay();
    EXPECT_TRUE(at::equal(recorded->made()[0].cpu(), at::full({64, 64}, 64 * value * value + 1)));
  }
}

}  // namespace
}  // namespace lehr::ops
