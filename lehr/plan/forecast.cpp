#include "lehr/plan/forecast.h"

#include <algorithm>

#include "lehr/pipeline/schedules.h"
#include "lehr/plan/resolved_run.h"
#include "lehr/plan/step_time.h"
#include "lehr/train/precision.h"
#include "lehr/train/ranks.h"

namespace lehr::plan {

namespace {
// The copies of saves: of the weights, unless only adapters are saved, and the optimizer's state.
int64_t copied(const train::TrainConfig& config, const StageMeasurement& stage) {
  if (!config.checkpoint.enable) {
    return 0;
  }
  return config.checkpoint.copies() * stage.saved_bytes(config.peft.has_adapters());
}

double extra_flops(double recomputed, double all) {
  return all > recomputed ? recomputed / (all - recomputed) : 0;
}

double recomputed(const StageMeasurement& stage) {
  return stage.forward.recomputed_flops + stage.backward.recomputed_flops;
}

double all_flops(const StageMeasurement& stage) {
  return stage.forward.flops() + stage.backward.flops();
}

int64_t peak_on_one_device(const train::TrainConfig& config, const StageMeasurement& stage) {
  const int64_t rows = config.training.local_batch_size;
  const int64_t batches = std::max<int64_t>(1, (config.training.rows_per_step() + rows - 1) / rows);
  const int64_t without_gradients = stage.at_rest() - stage.gradient_bytes + batches * stage.batch_bytes;
  if (batches == 1) {
    return without_gradients + std::max(stage.forward.peak, stage.only_backward_peak);
  }
  const int64_t later = std::max({stage.forward.peak, stage.backward.peak, stage.last_backward_peak});
  return without_gradients + std::max(stage.first_backward_peak, stage.gradient_bytes + later);
}

// Times of a machine of CPUs only decide the order of actions on the ranks of a pipeline.
train::StepForecast forecast_on_mesh(
    train::TrainConfig config, const train::TrainSpec& spec, const descriptor::ModelArgs& args, int64_t world_size) {
  const Machine machine = load_machine("cpu");
  const auto mesh = train::mesh_of(config.parallelism, world_size);
  config.parallelism.data_parallel_shard_degree = mesh.data_parallel_shard;
  const CostContext context{
      .machine = machine,
      .mesh = mesh,
      .compute = train::compute_type(config.training),
      .keeps_gathered = keeps_gathered(config)};
  const bool staged = mesh.pipeline_parallel > 1;
  const int64_t rows = staged ? train::microbatch_rows(config) : config.training.local_batch_size;
  const int64_t microbatches =
      config.training.rows_per_step() / (mesh.data_parallel_replicate * mesh.data_parallel_shard) / rows;
  const auto program = staged ? train::build_pipeline_program(config, microbatches)
                              : pipeline::build_program({.num_microbatches = microbatches});
  StageCosts costs(config, spec, args, context);
  const auto stages = costs.of(program.rank_of_stage);
  const StepPrediction step = predict_step(program, stages, context);
  std::vector<int64_t> copies(step.memory.size());
  double again = 0;
  double all = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    copies[static_cast<size_t>(program.rank_of_stage[i])] += copied(config, stages[i]->measured);
    again += recomputed(stages[i]->measured);
    all += all_flops(stages[i]->measured);
  }
  train::StepForecast most{.extra_flops = extra_flops(again, all)};
  for (size_t rank = 0; rank < step.memory.size(); ++rank) {
    const auto peak = static_cast<int64_t>(step.memory[rank].peak.total());
    if (peak + copies[rank] > most.with_copy()) {
      most.peak = peak;
      most.copied = copies[rank];
    }
  }
  return most;
}
}  // namespace

train::StepForecast forecast_step(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    int64_t world_size) {
  if (world_size > 1) {
    return forecast_on_mesh(config, spec, args, world_size);
  }
  const StageMeasurement stage = measure_stage(config, spec, args);
  return {
      .peak = peak_on_one_device(config, stage),
      .copied = copied(config, stage),
      .extra_flops = extra_flops(recomputed(stage), all_flops(stage))};
}

}  // namespace lehr::plan
