// How a trainer builds its model: whole or in stages, laid out on the mesh, judged, and only then given memory.
#include <filesystem>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/peft/inject.h"
#include "lehr/pipeline/balance.h"
#include "lehr/state/checkpoint.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/device.h"
#include "lehr/train/float8.h"
#include "lehr/train/initial_load.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/run_log.h"
#include "lehr/train/trainer.h"

namespace lehr::train {

void Trainer::build_model() {
  if (config_.debug.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  if (config_.parallelism.pipeline_parallel_degree > 1) {
    build_stages();
  } else {
    model_ = build_whole_model(config_, *args_, spec_.build);
    if (ranks_.world_size() > 1) {
      parallelize(*model_, {});
    }
  }
  optim::OptimizerContext context{.seed = static_cast<uint64_t>(config_.debug.seed)};
  // Of all stages: patterns are judged alike on all ranks.
  std::set<std::string> known;
  const auto tell = [&](const nn::Model& model) {
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      if (parameter->trainable() && known.insert(name).second) {
        context.parameters.push_back({.name = name, .shape = parameter->shape()});
      }
    }
  };
  if (stage_plan_) {
    check_float8(config_.float8, stage_plan_->layout.models);
    for (const auto& stage : stage_plan_->layout.models) {
      tell(*stage);
    }
    stage_plan_.reset();
  } else {
    check_float8(config_.float8, {model_});
    tell(*model_);
  }
  // Both judge the config by the model's names; nothing is allocated yet.
  optimizer_ = spec_.build.optimizer(config_.optimizer, context);
  if (ranks_.is_main()) {
    lock_ = std::make_unique<RunLock>(config_.job.dump_folder);
  }
  const auto root = std::filesystem::path(config_.job.dump_folder) / config_.checkpoint.folder;
  require(
      config_.checkpoint.enable || state::CheckpointStore(root).list().empty(),
      "checkpoint.enable: {} holds checkpoints of an earlier run, which this one would neither continue nor leave its "
      "logs; choose another job.dump_folder",
      root.string());
  if (config_.checkpoint.enable) {
    checkpoints_ = std::make_unique<RunCheckpoints>(
        config_, *args_, *tokenizer_, *model_, *optimizer_, ranks_.context(), whole_.get());
  }
  resumes_from_ = checkpoints_ ? checkpoints_->find() : std::nullopt;
  for (const auto& warning : checkpoints_ ? checkpoints_->take_warnings() : std::vector<std::string>{}) {
    environment_.log.warn("{}", warning);
  }
  if (config_.checkpoint.initial_load_path && (!resumes_from_ || config_.peft.has_adapters())) {
    initial_load_ = std::make_unique<InitialLoad>(config_, *args_);
    initial_load_->check(*model_, state_);
  }
  place_in_time(initial_load_ ? initial_load_->joined(state_) : state_);  // to judge the schedule early
  config_.training.steps = steps_asked_;
  const bool offload = config_.parallelism.fsdp_cpu_offload;
  if (config_.peft.has_adapters()) {
    // They are in no checkpoint, so what the arithmetic needs of them is enough.
    peft::materialize_frozen(*model_, offload ? at::Device(at::kCPU) : device_, compute_type(config_.training));
  }
  if (offload && device_.is_cpu() && ranks_.is_main()) {
    environment_.log.warn(
        "parallelism.fsdp_cpu_offload: the run computes on the CPU, so this saves no memory and copies in vain");
  }
  if (offload) {
    shard::materialize_offloaded(*model_, device_, parameter_type(config_.training));
    return;
  }
  nn::materialize(*model_, device_, parameter_type(config_.training));
}

// Before data is opened: what is wrong with it shall be told at once.
void Trainer::plan_stages() {
  const int64_t rows = config_.training.rows_per_step() / ranks_.data_parallel_size();
  auto program = build_pipeline_program(config_, rows / microbatch_rows(config_));
  ranks_.require_same("parallelism.pipeline_parallel_schedule_csv", pipeline::to_text(program));
  auto layout = lay_out_stages(config_, *args_, spec_.build, program.rank_of_stage);
  if (config_.parallelism.pipeline_parallel_balance == PipelineBalance::cost) {
    environment_.log.info(
        "layers by stage, spread by cost (parallelism.pipeline_parallel_balance): {}",
        pipeline::describe_layers(layout.layers));
  }
  stage_plan_ = std::make_unique<StagePlan>(StagePlan{.program = std::move(program), .layout = std::move(layout)});
}

// The stages that this rank has of the model.
void Trainer::build_stages() {
  const auto& [program, layout] = *stage_plan_;
  const mesh::Group& pp = ranks_.context()->group(mesh::axis::pp);
  std::vector<StagedModel::Stage> stages;
  for (const int64_t number : program.stages_of(pp.rank())) {
    stages.push_back({.number = number, .model = layout.models[static_cast<size_t>(number)]});
    parallelize(*stages.back().model, {.current_stage = number, .num_stages = layout.num_stages()});
  }
  const auto model = std::make_shared<StagedModel>(std::move(stages), layout.rank_of_stage, pp);
  pipeline_ = std::make_unique<Pipeline>(
      layout,
      Pipeline::Parts{
          .program = program,
          .microbatch_rows = microbatch_rows(config_),
          .task = *task_,
          .ranks = ranks_,
          .model = *model,
          .sharded = sharded_});
  model_ = model;
  whole_ = layout.whole;
}

void Trainer::parallelize(nn::Model& model, const pipeline::PipelineStageInfo& stage) {
  const auto compute_device = config_.parallelism.fsdp_cpu_offload ? std::optional(device_) : std::nullopt;
  sharded_.push_back(lay_out_stage(config_, spec_, *ranks_.context(), model, stage, compute_device));
}

}  // namespace lehr::train
