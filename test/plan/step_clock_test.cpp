#include "lehr/plan/step_clock.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lehr/pipeline/simulate.h"

namespace lehr::plan {
namespace {

using pipeline::ActionKind;

TimedPass::Call call(const std::string& collective, double seconds) {
  return {.axes = "fsdp", .collective = collective, .time = {.node = seconds}};
}

// F takes 1 s, B 2 s. The first forward gathers from the step's begin on; the last backward begins a reduction after
// 0.5 s, which the step waits for at its end.
StageCost stage(double gather, double reduction) {
  StageCost cost;
  cost.passes[{.kind = ActionKind::forward, .first = true}] = {
      .timed = {{{.started = 0}, {.waited = 0}, {}}, {0, 0, 1}, {call("all_gather", gather)}}, .border = 1};
  cost.passes[{.kind = ActionKind::forward, .after = PassPlace::After::backward}] = {.timed = {{{}}, {1}, {}}};
  cost.passes[{.kind = ActionKind::backward_full, .after = PassPlace::After::forward, .first = true}] = {
      .timed = {{{}}, {2}, {}}};
  for (const bool first : {true, false}) {
    cost.passes[{.kind = ActionKind::backward_full, .after = PassPlace::After::forward, .first = first, .last = true}] =
        {.timed = {{{.started = 0}, {}, {.waited = 0}}, {0.5, 1.5, 0}, {call("reduce_scatter", reduction)}},
         .border = 2};
  }
  return cost;
}

struct Found {
  double makespan;
  std::vector<double> gathers;  // waits by rank
  std::vector<double> reductions;
};
Found simulated(const char* text, const std::vector<StageCost>& stages, double overlap = 1) {
  const pipeline::Program program = pipeline::parse_program(text);
  std::vector<const StageCost*> costs;
  for (const StageCost& one : stages) {
    costs.push_back(&one);
  }
  const auto clock = std::make_shared<StepClock>(program, costs, overlap);
  Found found{.makespan = pipeline::simulate(program, {.clock = clock}).makespan};
  for (int64_t rank = 0; rank < program.num_ranks(); ++rank) {
    const auto waits = [&](const char* collective) {
      const auto& all = clock->waits(rank).exposed();
      const auto one = all.find({"fsdp", collective});
      return one == all.end() ? 0 : one->second;
    };
    found.gathers.push_back(waits("all_gather"));
    found.reductions.push_back(waits("reduce_scatter"));
  }
  return found;
}

TEST(StepClock, AStepBeginsWithGathersAndEndsWithReductions) {
  const Found found = simulated("0F0 0B0 0F1 0B1", {stage(3, 4)});
  EXPECT_EQ(found.gathers[0], 3);
  EXPECT_EQ(found.reductions[0], 4 - 1.5);
  EXPECT_EQ(found.makespan, 6 + 3 + 2.5);
  EXPECT_EQ(simulated("0F0 0B0 0F1 0B1", {stage(3, 4)}, 0.5).reductions[0], 4 - 0.75);
}

// Stages 0 and 2 on rank 0, 1 and 3 on rank 1: F0 from 0 to 1 s, F1 to 2 s, ...; B3 from 4 to 6 s, ..., B0 to 12 s.
TEST(StepClock, ARankGathersWhileItWaitsAndReducesBesideOtherStages) {
  const char* program = "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0";
  const Found found = simulated(program, {stage(0, 0), stage(1.5, 0), stage(0, 0), stage(2, 6)});
  // The first gather of rank 1 is 0.5 s late. The second one begins when the first has ended, at 1.5 s, and ends with
  // its call at 3.5 s.
  EXPECT_EQ(found.gathers, (std::vector<double>{0, 0.5}));
  // From 5 s on, until the end of B1 at 10.5 s.
  EXPECT_EQ(found.reductions, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(found.makespan, 12.5);
  // The reduction of stage 1, of the same group, begins when that of stage 3 has ended, at 11 s.
  EXPECT_EQ(simulated(program, {stage(0, 0), stage(1.5, 3), stage(0, 0), stage(2, 6)}).reductions[1], 0.5 + 3);
}

}  // namespace
}  // namespace lehr::plan
