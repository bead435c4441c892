#include "lehr/train/loss_spikes.h"

#include <gmock/gmock.h>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ReliabilityConfig spikes(double factor, int64_t window, OnSpike on_spike = OnSpike::warn) {
  ReliabilityConfig config;
  config.spike_factor = factor;
  config.spike_window = window;
  config.on_spike = on_spike;
  return config;
}

TEST(LossSpikes, ASpikeIsAboveTheFactorTimesTheMedianOfTheWindow) {
  LossSpikes watch(spikes(2, 3));
  EXPECT_FALSE(watch.see(1.0));
  EXPECT_FALSE(watch.see(100.0));  // the window is not full
  EXPECT_FALSE(watch.see(3.0));
  EXPECT_FALSE(watch.see(6.0));                    // not above 2 x 3
  EXPECT_EQ(watch.see(12.1), std::optional(6.0));  // after 100, 3, 6
  EXPECT_FALSE(watch.see(2.0));
}

TEST(LossSpikes, ALevelThatLastsIsNoSpikeForLong) {
  LossSpikes watch(spikes(1.5, 4), {1, 1, 1, 1});
  int64_t found = 0;
  for (int i = 0; i < 10; ++i) {
    found += watch.see(2.0) ? 1 : 0;
  }
  EXPECT_EQ(found, 2);  // then half of the window has the new level
}

// The loss of step 8 is 4 times as high on every mesh.
class SpikingTask : public CausalLMTask {
 public:
  explicit SpikingTask(const std::function<int64_t()>& step) : step_(step) {}
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return CausalLMTask::compute_loss(outputs, batch) * (step_() == 8 ? 4.0 : 1.0);
  }

 private:
  std::function<int64_t()> step_;
};

struct Spiked {
  std::string error;
  std::vector<double> losses, skipped;
};

Spiked run_with_spike(
    const testing::Folder& folder,
    const std::string& on_spike,
    const testing::Mesh& mesh,
    int64_t stop_after = 0,
    const Overrides& more = {}) {
  const Overrides watched{
      {"reliability.spike_factor", "2.0"},
      {"reliability.spike_window", "4"},
      {"reliability.on_spike", on_spike},
      {"training.dtype", "float64"},
      {"checkpoint.interval", "100"},
      {"validation.enable", "false"}};
  auto config = testing::tiny_run(folder.path(), testing::joined(watched, more));
  config.parallelism.data_parallel_shard_degree = mesh.dp_shard;
  config.parallelism.tensor_parallel_degree = mesh.tp;
  Spiked result;
  try {
    mesh::run_ranks(
        mesh.world(),
        [&](mesh::Transport& transport) {
          Logger quiet("", true);
          int64_t step = 0, done = 0;
          TrainSpecs list;
          TrainSpec spec{.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense};
          spec.build.task = [&](const TrainConfig&) { return std::make_unique<SpikingTask>([&] { return step; }); };
          list.add(std::move(spec));
          const auto stop = [&] { return stop_after > 0 && done == stop_after; };
          Trainer trainer(config, {.specs = list, .log = quiet, .stop_requested = stop, .transport = &transport});
          trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) { step = context.step; });
          trainer.events().subscribe(Event::step_end, [&](const EventContext& context) { done = context.step; });
          trainer.run();
        },
        std::chrono::seconds(60));
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.losses = metric::read_metric(folder.path() / "out/metrics.jsonl", "loss").values;
  result.skipped = metric::read_metric(folder.path() / "out/metrics.jsonl", "skipped").steps;
  return result;
}

TEST(LossSpikes, StopEndsTheRunOnEveryRankAndNamesTheStep) {
  for (const testing::Mesh& mesh : {testing::Mesh{}, testing::Mesh{.dp_shard = 2}, testing::Mesh{.tp = 2}}) {
    const testing::Folder folder;
    const Spiked run = run_with_spike(folder, "stop", mesh);
    EXPECT_THAT(
        run.error,
        AllOf(
            HasSubstr("step 8: the loss "),
            HasSubstr("the median of the last 4 steps"),
            HasSubstr("the update was not applied")));
  }
}

TEST(LossSpikes, SkippingIsTheSameOnEveryMeshAndWarningsChangeNothing) {
  const testing::Folder alone;
  const Spiked expected = run_with_spike(alone, "skip", {});
  EXPECT_EQ(expected.error, "");
  ASSERT_EQ(expected.losses.size(), 12U);
  EXPECT_THAT(expected.skipped, ElementsAre(8, 9, 10, 11, 12));  // the count of skipped steps from step 8 on
  for (const testing::Mesh& mesh : {testing::Mesh{.dp_shard = 2}, testing::Mesh{.tp = 2}}) {
    const testing::Folder folder;
    const Spiked run = run_with_spike(folder, "skip", mesh);
    ASSERT_EQ(run.losses.size(), 12U) << run.error;
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(run.losses[i], expected.losses[i], testing::kTolerance * expected.losses[i]);
    }
  }
  const testing::Folder folder;
  const Spiked warned = run_with_spike(folder, "warn", {});
  EXPECT_TRUE(warned.skipped.empty());
  EXPECT_EQ(warned.losses[7], expected.losses[7]);
  EXPECT_NE(warned.losses[8], expected.losses[8]);  // its update was applied
}

// Stopped after step 6 or 8, that is before and after the spike, a run knows the losses of its earlier steps.
TEST(LossSpikes, AResumedRunDecidesLikeOneThatWasNeverStopped) {
  const testing::Folder whole;
  const Spiked expected = run_with_spike(whole, "skip", {});
  for (const testing::Mesh& mesh : {testing::Mesh{}, testing::Mesh{.dp_shard = 2}}) {
    for (const int64_t stop : {6, 8}) {
      const testing::Folder folder;
      run_with_spike(folder, "skip", mesh, stop);
      const Spiked run = run_with_spike(folder, "skip", mesh);
      ASSERT_EQ(run.losses.size(), 12U) << run.error;
      EXPECT_EQ(run.skipped, expected.skipped);
      for (size_t i = 0; i < 12; ++i) {
        EXPECT_NEAR(run.losses[i], expected.losses[i], testing::kTolerance * expected.losses[i]);
      }
    }
  }
}

TEST(LossSpikes, ARunThatContinuesAnotherDecidesLikeIt) {
  const testing::Folder whole, first, second;
  const Spiked expected = run_with_spike(whole, "skip", {});
  run_with_spike(first, "skip", {}, 6);
  const std::string other = (first.path() / "out/checkpoints/step-6").string();
  const Spiked run = run_with_spike(
      second,
      "skip",
      {},
      0,
      {{"checkpoint.initial_load_path", '"' + other + '"'}, {"checkpoint.initial_load_model_only", "false"}});
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.skipped, expected.skipped);
  EXPECT_EQ(run.losses, std::vector<double>(expected.losses.begin() + 6, expected.losses.end()));
}

TEST(LossSpikes, ARunThatIsWatchedFromAResumeOnKnowsItsEarlierLosses) {
  const testing::Folder whole, parts;
  const Spiked expected = run_with_spike(whole, "skip", {});
  run_with_spike(parts, "warn", {}, 6, {{"reliability.spike_factor", "0"}, {"reliability.spike_window", "32"}});
  const Spiked run = run_with_spike(parts, "skip", {});
  EXPECT_EQ(run.losses, expected.losses);
  EXPECT_EQ(run.skipped, expected.skipped);
}

}  // namespace
}  // namespace lehr::train
