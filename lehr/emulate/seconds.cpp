#include "lehr/emulate/seconds.h"

#include "lehr/plan/cost_model.h"
#include "lehr/plan/make_plan.h"

namespace lehr::emulate {

namespace {
// Adds the layer overhead to the events [begin, end) of an action, in proportion to their seconds.
void add_overhead(std::vector<double>& seconds, size_t begin, size_t end, double overhead) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += seconds[i];
  }
  for (size_t i = begin; i < end && sum > 0; ++i) {
    seconds[i] += overhead * seconds[i] / sum;
  }
}
}  // namespace

std::vector<double> seconds_of(const Recording& recording, const plan::Plan& plan) {
  const plan::CostContext context = plan::cost_context(plan);
  const plan::PlannedStage none;
  std::vector<double> seconds(recording.events.size(), 0);
  const auto fill = [&](size_t begin, size_t end, const plan::PlannedStage& stage) {
    for (size_t i = begin; i < end; ++i) {
      const OperationCounts& work = recording.events[i].work;
      const plan::ActionMeasurement measured{
          .matmul_flops = work.matmul_flops,
          .attention_flops = work.attention_flops,
          .pointwise_bytes = work.pointwise_bytes};
      seconds[i] = plan::computation_of(measured, stage.measured, stage.expert_share, context).computing();
    }
  };
  size_t begin = 0;
  for (size_t i = 0; i < recording.events.size(); ++i) {
    const Event& event = recording.events[i];
    if (event.kind != EventKind::action) {
      continue;
    }
    const plan::PlannedStage& stage = plan.stages[static_cast<size_t>(event.action.stage)];
    fill(begin, i, stage);
    if (event.action.is_compute()) {
      const auto layers = static_cast<double>(stage.measured.num_layers);
      const auto expert_layers = static_cast<double>(stage.measured.num_expert_layers);
      const double microseconds =
          layers * plan.machine.layer_overhead_us + expert_layers * plan.machine.expert_layer_overhead_us;
      add_overhead(seconds, begin, i, microseconds * 1e-6);
    }
    begin = i;
  }
  fill(begin, recording.events.size(), none);
  return seconds;
}

}  // namespace lehr::emulate
