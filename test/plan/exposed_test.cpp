#include "lehr/plan/exposed.h"

#include <gtest/gtest.h>

#include "lehr/plan/cost_model.h"
#include "test/plan/support.h"

namespace lehr::plan {
namespace {

ActionEvent start(int64_t call) {
  return {.started = call};
}
ActionEvent wait(int64_t call) {
  return {.waited = call};
}
TimedPass::Call call(const std::string& axes, const LinkTime& time, const std::string& collective = "all_gather") {
  return {.axes = axes, .collective = collective, .time = time};
}

// Passes of one stage, with nothing between them.
class Example {
 public:
  explicit Example(double overlap = 1) : rank(overlap) {}
  double run(const TimedPass& pass) { return rank.run(pass, 0, pass.events.size(), calls); }
  double exposed(const std::string& axes, const std::string& collective = "all_gather") const {
    const auto found = rank.exposed().find({axes, collective});
    return found == rank.exposed().end() ? 0 : found->second;
  }

  RankPasses rank;
  StageCalls calls;
};

TEST(Exposed, IsTheWaitThatComputationDoesNotCover) {
  TimedPass pass{{start(0), wait(0)}, {1, 2}, {call("fsdp", {.latency = 0.5, .node = 3})}};
  const auto time = [&](double overlap) { return Example(overlap).run(pass); };
  EXPECT_DOUBLE_EQ(time(1), 3 + 1.5);
  // The latency passes at its own speed; then 1.5 s of computation cover 0.75 s.
  EXPECT_DOUBLE_EQ(time(0.5), 3 + 2.25);
  EXPECT_DOUBLE_EQ(time(0), 3 + 3);
  pass.calls[0].covered = 0.75;
  EXPECT_DOUBLE_EQ(time(1), 3 + 0.25 * 1.5);
}

TEST(Exposed, CallsOfAGroupAreSequentialAndOthersShareTheirLink) {
  TimedPass two{
      {start(0), start(1), wait(0), wait(1)},
      {0, 0, 0, 0},
      {call("fsdp", {.node = 1}), call("fsdp", {.node = 1}, "reduce_scatter")}};
  const auto ran = [&] {
    Example example;
    example.run(two);
    return example;
  };
  EXPECT_DOUBLE_EQ(ran().exposed("fsdp"), 1);
  EXPECT_DOUBLE_EQ(ran().exposed("fsdp", "reduce_scatter"), 1);
  two.calls[1] = call("tp", {.node = 1});
  EXPECT_DOUBLE_EQ(ran().exposed("fsdp"), 2);
  EXPECT_DOUBLE_EQ(ran().exposed("tp"), 0);
  two.calls[1] = call("tp", {.network = 1});
  EXPECT_DOUBLE_EQ(ran().exposed("fsdp"), 1);
  two.calls = {call("cp", {.node = 1}, "send"), call("cp", {.node = 1}, "receive")};
  EXPECT_DOUBLE_EQ(Example().run(two), 1);  // in both directions at once
}

// The first pass prefetches for the second one, which waits for the prefetch with a call that it does not start.
TEST(Exposed, CallsGoOnFromPassToPass) {
  const TimedPass ahead{{start(0)}, {1}, {call("fsdp", {.node = 4})}};
  const TimedPass later{{wait(0), {}}, {1, 1}, {call("fsdp", {.node = 4})}};
  Example example;
  EXPECT_DOUBLE_EQ(example.run(ahead), 1);
  example.rank.pass_time(2, /*computing=*/false);
  EXPECT_DOUBLE_EQ(example.run(later), 1 + 1 + 1);
  EXPECT_DOUBLE_EQ(example.run(later), 1 + 4 + 1);  // nobody has started it: it begins now
  EXPECT_DOUBLE_EQ(example.exposed("fsdp"), 5);
}

TEST(Exposed, AReductionThatNobodyStartedIsNotWaitedFor) {
  const TimedPass pass{{wait(0)}, {1}, {call("fsdp", {.node = 4}, "reduce_scatter")}};
  EXPECT_DOUBLE_EQ(Example().run(pass), 1);
}

// A stage's collectives follow those that another stage of the rank has started on the same group.
TEST(Exposed, StagesOfARankShareTheQueuesOfTheirGroups) {
  const TimedPass pass{{start(0), wait(0)}, {0, 0}, {call("fsdp", {.node = 1})}};
  const TimedPass ahead{{start(0)}, {0}, {call("fsdp", {.node = 5})}};
  Example example;
  StageCalls other;
  example.rank.run(ahead, 0, 1, other);
  EXPECT_DOUBLE_EQ(example.run(pass), 6);
}

// Of p parts, one waits for its rows, and one for its results. In backward the gradients of the weights overlap with
// the last transfer.
TEST(RankPasses, PartsOfExpertsOverlapTheirAllToAlls) {
  Machine machine = load_machine("cpu");
  machine.layer_overhead_us = machine.node_latency_us = 0;
  machine.communication_overlap = 1;
  machine.node_gb_per_second = 10;  // an all-to-all takes a tenth of the experts' time
  const auto exposed = [&](const char* parts, ActionCost StageCost::*pass) {
    const testing::Planned planned(testing::model_of(
        "qwen3_moe",
        {{"parallelism.data_parallel_shard_degree", "2"},
         {"parallelism.expert_parallel_degree", "2"},
         {"parallelism.expert_parallel_parts", parts},
         {"activation_checkpoint.mode", "none"},
         {"model.args.moe_intermediate_size", "512"},
         {"training.global_batch_size", "4"}}));
    const StageMeasurement stage = planned.on_meta({.stage = 0, .rank_of_stage = {0}, .world_size = 2});
    const CostContext context{.machine = machine, .mesh = {.data_parallel_shard = 2, .expert_parallel = 2}};
    const StageCost cost = cost_of(stage, stage.weights.expert_share(), context);
    double sum = 0;
    for (const CommunicationCost& one : (cost.*pass).communication) {
      sum += one.axes == "ep" ? one.exposed : 0;
    }
    return sum;
  };
  const double forward = exposed("1", &StageCost::forward), backward = exposed("1", &StageCost::backward);
  EXPECT_LT(exposed("4", &StageCost::forward), 0.4 * forward);
  EXPECT_LT(exposed("4", &StageCost::backward), 0.3 * backward);
}

}  // namespace
}  // namespace lehr::plan
