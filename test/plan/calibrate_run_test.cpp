// The figures of a CPU for the sizes of one run, by a clock of the test's own.
#include "lehr/plan/calibrate_run.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/plan/make_plan.h"
#include "test/plan/support.h"

namespace lehr::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// So high that no fraction is above 1, whatever the clock says.
Machine fast_cpu() {
  Machine machine = load_machine("cpu");
  machine.tflops_float32 = machine.tflops_bfloat16 = machine.tflops_float64 = 1e6;
  return machine;
}

Machine calibrated(const testing::Planned& run, const Machine& cpu) {
  double now = 0;  // a second later whenever it is read
  return calibrate_cpu_for(cpu, run.config, run.spec, 0, [&] { return now += 1; });
}

// A micro-batch without a profile reads the clock twice, so it takes one second; a profile reads it at each operator.
// The plan's seconds of forward and backward must be that second: what was measured is what is predicted.
TEST(CalibrateForARun, ThePlanOfThatRunHasTheSecondsThatWereMeasured) {
  for (const Overrides& changes :
       {testing::model_of("qwen3"),
        testing::model_of("qwen3_moe"),
        testing::model_of("qwen3", {{"training.dtype", "bfloat16"}}),
        testing::model_of("qwen3_moe", {{"training.dtype", "bfloat16"}}),
        testing::model_of("qwen3", {{"activation_checkpoint.mode", "full"}})}) {
    const testing::Planned run(changes);
    const Machine machine = calibrated(run, fast_cpu());
    const Plan plan = make_plan(run.config, run.spec, machine);
    const StageCost& cost = plan.stages.front().cost;
    EXPECT_NEAR(cost.forward.computing() + cost.backward.computing(), 1, 1e-9) << changes[0].second;
    for (const double part :
         {cost.forward.matmuls, cost.forward.attention, cost.forward.pointwise, cost.forward.overhead}) {
      EXPECT_GT(part, 1e-3) << "each kind of operator has some of the readings";
    }
  }
}

TEST(CalibrateForARun, TakesAllMicrobatchesOfAMeshForOneOnOneRank) {
  const testing::Planned alone(testing::model_of("qwen3"));
  const testing::Planned of_four(testing::model_of(
      "qwen3",
      {{"training.local_batch_size", "4"},
       {"parallelism.pipeline_parallel_degree", "2"},
       {"parallelism.pipeline_parallel_microbatch_size", "1"}}));
  EXPECT_EQ(to_toml(calibrated(of_four, fast_cpu())), to_toml(calibrated(alone, fast_cpu())));
}

TEST(CalibrateForARun, ChangesNothingOfTheMachineItself) {
  const testing::Planned run(testing::model_of("qwen3"));
  const Machine cpu = fast_cpu(), machine = calibrated(run, cpu);
  EXPECT_EQ(machine.tflops_float32, cpu.tflops_float32);
  EXPECT_EQ(machine.memory_gb_per_second, cpu.memory_gb_per_second);
  EXPECT_EQ(machine.memory_gb, cpu.memory_gb);
  EXPECT_EQ(machine.achieved_fraction_bfloat16, cpu.achieved_fraction_bfloat16) << "the run is in float32";
}

TEST(CalibrateForARun, RefusesARunThatDoesNotFitByName) {
  const testing::Planned run(testing::model_of("qwen3"));
  Machine cpu = fast_cpu();
  cpu.memory_gb = cpu.reserved_gb + 1e-6;
  EXPECT_THAT(
      [&] { calibrated(run, cpu); },
      ThrowsMessage<Error>(AllOf(HasSubstr("training.local_batch_size"), HasSubstr("num_hidden_layers"))));
}

TEST(CalibrateForARun, SaysThatTheMachineWasBusyIfAFractionIsAboveOne) {
  const testing::Planned run(testing::model_of("qwen3"));
  Machine slow = fast_cpu();
  slow.tflops_float32 = 1e-9;
  EXPECT_THAT([&] { calibrated(run, slow); }, ThrowsMessage<Error>(HasSubstr("measure again")));
}

}  // namespace
}  // namespace lehr::plan
