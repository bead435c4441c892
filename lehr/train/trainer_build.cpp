// How a trainer builds its model: whole or in stages, laid out on the mesh, judged, and only then given memory.
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/peft/inject.h"
#include "lehr/state/checkpoint.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/device.h"
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
  for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
    if (parameter->trainable()) {
      context.parameters.push_back({.name = name, .shape = parameter->shape()});
    }
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
    checkpoints_ =
        std::make_unique<RunCheckpoints>(config_, *args_, *tokenizer_, *model_, *optimizer_, ranks_.context());
  }
  if (config_.peft.has_adapters()) {
    // They are in no checkpoint, so what the arithmetic needs of them is enough.
    peft::materialize_frozen(*model_, device_, compute_type(config_.training));
  }
  nn::materialize(*model_, device_, parameter_type(config_.training));
}

// The stages that this rank has of the model.
void Trainer::build_stages() {
  const int64_t rows = config_.training.rows_per_step() / ranks_.data_parallel_size();
  const auto program = build_pipeline_program(config_, rows / microbatch_rows(config_));
  const StageLayout layout = lay_out_stages(config_, *args_, spec_.build, program.rank_of_stage);
  const mesh::Group& pp = ranks_.context()->group(mesh::axis::pp);
  std::vector<StagedModel::Stage> stages;
  for (const int64_t number : program.stages_of(pp.rank())) {
    stages.push_back({.number = number, .model = layout.models[static_cast<size_t>(number)]});
    parallelize(*stages.back().model, {.current_stage = number, .num_stages = layout.num_stages()});
  }
  const auto model = std::make_shared<StagedModel>(std::move(stages), layout.rank_of_stage, pp);
  pipeline_ = std::make_unique<Pipeline>(
      layout,
      Pipeline::Parts{.config = config_, .task = *task_, .ranks = ranks_, .model = *model, .sharded = sharded_});
  model_ = model;
}

void Trainer::parallelize(nn::Model& model, const pipeline::PipelineStageInfo& stage) {
  sharded_.push_back(lay_out_stage(config_, spec_, *ranks_.context(), model, stage));
}

}  // namespace lehr::train
