// Saves of tensors on a device, here that of test/base/fake_queues.h: they are copied through a bounded pinned buffer,
// beside the training until it updates them.
#include <gmock/gmock.h>

#include <random>

#include "lehr/state/async_checkpointer.h"
#include "test/base/fake_queues.h"
#include "test/state/checkpoint_support.h"

namespace lehr::state {
namespace {
using lehr::testing::FakeQueues;
using testing::bit_equal;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

constexpr int64_t kPinned = 4096;

// A fake device whose copies can be held back, as on a busy bus.
class HeldQueues final : public FakeQueues {
 public:
  void copy(const at::Tensor& target, const at::Tensor& source) override {
    held_.wait(true);
    FakeQueues::copy(target, source);
  }
  void hold_copies() { held_ = true; }
  void let_go() {
    held_ = false;
    held_.notify_all();
  }

 private:
  std::atomic<bool> held_ = false;
};

// A run of a few steps that saves its tensors after some of them.
class SavingRun {
 public:
  explicit SavingRun(unsigned seed)
      : random_(seed),
        checkpointer_(
            CheckpointStore(folder_.path()), 0, nullptr, [this](at::Device) { return queues_; }, kPinned) {
    at::manual_seed(seed);
    for (int64_t i = 0; i < 3; ++i) {
      at::Tensor tensor = at::randn({1 + pick(60), 1 + pick(60)});
      if (pick(3) == 0) {
        tensor = tensor.to(at::kBFloat16);
      }
      weights_.push_back(pick(3) == 0 ? tensor.t() : tensor);
    }
  }

  void save(int64_t step) {
    CheckpointContents contents{.step = step, .weights = {{.tensors = {}}, {.stem = "optimizer", .tensors = {}}}};
    contents.weights[1].dtype = at::kBFloat16;
    for (size_t i = 0; i < weights_.size(); ++i) {
      contents.weights[i == 0 ? 1 : 0].tensors.emplace_back(fmt::format("w{}", i), weights_[i]);
      saved_[step].push_back(weights_[i].clone());
    }
    checkpointer_.save(contents);
  }

  // Forward and backward read the weights, and an update writes them. `waits`: the update waits for the copies, as in a
  // trainer.
  void step(bool waits) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& weight : weights_) {
      gradients.push_back(weight * 0.125);
    }
    if (waits) {
      checkpointer_.wait_copied();
    }
    for (size_t i = 0; i < weights_.size(); ++i) {
      weights_[i].sub_(gradients[i]);
    }
  }

  int64_t pick(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }

  // Returns the problems of the files, and of the order of work.
  std::vector<std::string> problems() {
    checkpointer_.wait();
    std::vector<std::string> found = queues_->problems();
    while (const auto result = checkpointer_.poll()) {
      if (!result->ok()) {
        found.push_back(result->error);
      }
    }
    for (const auto& [step, weights] : saved_) {
      const auto folder = folder_.path() / fmt::format("step-{}", step);
      for (size_t i = 0; i < weights.size(); ++i) {
        const at::Tensor file = WeightReader(folder, i == 0 ? "optimizer" : "model").tensor(fmt::format("w{}", i));
        if (!bit_equal(file, i == 0 ? weights[i].to(at::kBFloat16) : weights[i])) {
          found.push_back(fmt::format("step {}: w{} has other bytes", step, i));
        }
      }
    }
    return found;
  }

  HeldQueues& queues() { return *queues_; }

 private:
  std::mt19937 random_;
  TemporaryFolder folder_;
  std::shared_ptr<HeldQueues> queues_ = std::make_shared<HeldQueues>();
  std::vector<at::Tensor> weights_;
  std::map<int64_t, std::vector<at::Tensor>> saved_;
  AsyncCheckpointer checkpointer_;
};

TEST(AsyncDeviceCheckpointer, SavesTheBytesOfTheStepWithinItsPinnedMemory) {
  int64_t copies = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    SavingRun run(seed);
    for (int64_t step = 1; step <= 6; ++step) {
      run.step(/*waits=*/true);
      if (run.pick(2) == 0) {
        run.save(step);
      }
    }
    EXPECT_THAT(run.problems(), IsEmpty()) << seed;
    EXPECT_LE(run.queues().pinned_bytes(), kPinned);
    copies += run.queues().copies();
  }
  EXPECT_GT(copies, 20 * 3 * 4);  // tensors are larger than a buffer
}

TEST(AsyncDeviceCheckpointer, AnUpdateThatDoesNotWaitIsDetected) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    SavingRun run(seed);
    run.step(true);
    run.queues().hold_copies();
    run.save(1);
    run.step(/*waits=*/false);
    run.queues().let_go();
    EXPECT_THAT(run.problems(), Not(IsEmpty())) << seed;
  }
}

TEST(AsyncDeviceCheckpointer, SavesNothingIfPinnedMemoryCannotBeAllocated) {
  class NoMemory final : public FakeQueues {
    at::Tensor empty_pinned(at::IntArrayRef, at::ScalarType) override {
      throw std::runtime_error("cannot pin host memory");
    }
  };
  const TemporaryFolder folder;
  const auto queues = std::make_shared<NoMemory>();
  AsyncCheckpointer checkpointer(CheckpointStore(folder.path()), 0, nullptr, [&](at::Device) { return queues; });
  checkpointer.save({.step = 1, .weights = {{.tensors = {{"w", at::ones({3})}}}}});
  checkpointer.wait_copied();  // returns immediately
  checkpointer.wait();
  EXPECT_THAT(checkpointer.poll()->error, HasSubstr("cannot pin host memory"));
  EXPECT_THAT(checkpointer.store().list(), IsEmpty());
}

}  // namespace
}  // namespace lehr::state
