#include "lehr/train/run_model.h"

#include <set>

#include "lehr/base/log.h"
#include "lehr/pipeline/balance.h"
#include "lehr/shard/whole_tensors.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/float8.h"
#include "lehr/train/generate.h"

namespace lehr::train {

std::optional<StagePlan> plan_stages(const Run& run) {
  if (run.config.parallelism.pipeline_parallel_degree <= 1) {
    return std::nullopt;
  }
  const int64_t rows = run.config.training.rows_per_step() / run.ranks.data_parallel_size();
  auto program = build_pipeline_program(run.config, rows / microbatch_rows(run.config));
  run.ranks.require_same("parallelism.pipeline_parallel_schedule_csv", pipeline::to_text(program));
  auto layout = lay_out_stages(run.config, *run.args, run.spec.build, program.rank_of_stage);
  if (run.config.parallelism.pipeline_parallel_balance == PipelineBalance::cost) {
    run.logger.info(
        "layers by stage, spread by cost (parallelism.pipeline_parallel_balance): {}",
        pipeline::describe_layers(layout.layers));
  }
  return StagePlan{.program = std::move(program), .layout = std::move(layout)};
}

namespace {
void parallelize(Run& run, nn::Model& model, const pipeline::PipelineStageInfo& stage) {
  const auto compute_device = run.config.parallelism.fsdp_cpu_offload ? std::optional(run.device) : std::nullopt;
  run.sharded.push_back(lay_out_stage(run.config, run.spec, *run.ranks.context(), model, stage, compute_device));
}

// The stages of this rank.
void build_stages(Run& run, const StagePlan& plan) {
  const auto& [program, layout] = plan;
  const mesh::Group& pp = run.ranks.context()->group(mesh::axis::pp);
  std::vector<StagedModel::Stage> stages;
  for (const int64_t number : program.stages_of(pp.rank())) {
    stages.push_back({.number = number, .model = layout.models[static_cast<size_t>(number)]});
    parallelize(run, *stages.back().model, {.current_stage = number, .num_stages = layout.num_stages()});
  }
  const TrainTask& task = run.distillation ? *run.distillation : *run.task;
  const auto model = std::make_shared<StagedModel>(std::move(stages), layout.rank_of_stage, pp);
  run.pipeline = std::make_unique<Pipeline>(
      layout,
      Pipeline::Parts{.program = program, .task = task, .ranks = run.ranks, .model = *model, .sharded = run.sharded});
  run.model = model;
  run.whole = layout.whole;
}
}  // namespace

void build_model_on_mesh(Run& run, const std::optional<StagePlan>& stages) {
  if (stages) {
    build_stages(run, *stages);
  } else {
    run.model = build_whole_model(run.config, *run.args, run.spec.build);
    if (run.ranks.context() != nullptr) {
      parallelize(run, *run.model, {});
    }
  }
  if (run.config.sample.prompt) {
    check_generation(*run.model, run.ranks);
  }
}

void build_run_optimizer(Run& run, const std::optional<StagePlan>& stages) {
  const std::vector<std::shared_ptr<nn::Model>> models =
      stages ? stages->layout.models : std::vector<std::shared_ptr<nn::Model>>{run.model};
  check_float8(run.config.float8, models);
  optim::OptimizerContext context{.seed = static_cast<uint64_t>(run.config.debug.seed)};
  std::set<std::string> known;  // a tied table is in two stages
  for (const auto& model : models) {
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      if (parameter->trainable() && known.insert(name).second) {
        context.parameters.push_back({.name = name, .shape = parameter->shape()});
      }
    }
  }
  if (run.ranks.context() != nullptr) {
    context.whole_tensors = std::make_shared<shard::MeshWholeTensors>(
        *run.ranks.context(),
        nn::named_parameters(*run.model),
        run.config.parallelism.fsdp_cpu_offload ? std::optional(run.device) : std::nullopt);
  }
  run.optimizer = run.spec.build.optimizer(run.config.optimizer, context);
}

}  // namespace lehr::train
