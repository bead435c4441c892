#include "lehr/train/stragglers.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(FindStragglers, ComparesARankWithTheMedianOfItsStage) {
  // Stage 1 computes for ten times as long as stage 0; only rank 3 is late within its own.
  EXPECT_THAT(
      find_stragglers({1, 1, 1, 2, 10, 10, 11, 12}, {0, 0, 0, 0, 1, 1, 1, 1}, 1.5),
      ElementsAre(Straggler{.rank = 3, .median = 1}));
}

TEST(FindStragglers, OfTwoRanksOneCanBeLateAndOneAloneCannot) {
  EXPECT_THAT(find_stragglers({3, 2}, {0, 0}, 1.4), ElementsAre(Straggler{.rank = 0, .median = 2}));
  EXPECT_THAT(find_stragglers({3, 2}, {0, 1}, 1.4), IsEmpty());
  EXPECT_THAT(find_stragglers({3, 2}, {0, 0}, 1.5), IsEmpty());  // not above 1.5 x 2
}

// A task that sleeps on one rank.
class SleepingTask : public CausalLMTask {
 public:
  explicit SleepingTask(bool sleeps) : sleeps_(sleeps) {}
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    if (sleeps_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    return CausalLMTask::compute_loss(outputs, batch);
  }

 private:
  bool sleeps_;
};

// Four ranks wait for each other in every layer, so all have the same step time; only rank 2 does not wait. The sleep
// is long beside the milliseconds that the others compute for, which may differ by a factor of two on a busy machine.
TEST(Stragglers, TheLogNamesTheRankThatTheOthersWaitFor) {
  const testing::Folder folder;
  auto config = testing::tiny_run(
      folder.path(),
      {{"reliability.straggler_factor", "8"},
       {"reliability.straggler_window", "2"},
       {"training.local_batch_size", "1"},
       {"training.global_batch_size", "2"},
       {"training.steps", "2"},
       {"checkpoint.enable", "false"},
       {"validation.enable", "false"}});
  config.parallelism.data_parallel_shard_degree = 2;
  config.parallelism.tensor_parallel_degree = 2;
  ::testing::internal::CaptureStderr();
  mesh::run_ranks(
      4,
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        TrainSpecs list;
        TrainSpec spec{.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense};
        spec.build.task = [&](const TrainConfig&) { return std::make_unique<SleepingTask>(transport.rank() == 2); };
        list.add(std::move(spec));
        Trainer(config, {.specs = list, .log = quiet, .transport = &transport}).run();
      },
      std::chrono::seconds(60));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(
          HasSubstr("steps 1 to 2: rank 2 (dp_shard 1, tp 0) on "),
          HasSubstr(fmt::format("(process {}) computed for 0.", ::getpid())),
          Not(HasSubstr("rank 0 (")),
          Not(HasSubstr("rank 1 (")),
          Not(HasSubstr("rank 3 ("))));
  const std::string times = read_file(folder.path() / "out/rank_times.jsonl");
  EXPECT_THAT(times, HasSubstr("{\"step\": 2, \"seconds_per_step\": ["));
}

TEST(Stragglers, AFactorBelowOneIsRefused) {
  const testing::Folder folder;
  EXPECT_THAT(
      [&] {
        testing::tiny_run(folder.path(), {{"reliability.straggler_factor", "0.9"}});
      },
      ::testing::Throws<Error>(
          ::testing::Property(&Error::what, HasSubstr("expected 0, or a factor above 1, such as 1.3; found 0.9"))));
}

}  // namespace
}  // namespace lehr::train
