// How a trainer builds its model: whole or in stages, laid out on the mesh, judged, and only then given memory.
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/shard/plan_check.h"
#include "lehr/state/checkpoint.h"
#include "lehr/train/device.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/run_log.h"
#include "lehr/train/trainer.h"

namespace lehr::train {

namespace {
// The module of a classifier's head by its place on disk; nothing for other models. It starts from random values, so it
// trains whatever else does.
std::string head_module(const descriptor::ModelArgs& args) {
  for (const auto& entry : peft::stored_names(args)) {
    if (entry.stored == "score.weight") {
      return peft::module_of(entry.parameter);
    }
  }
  return "";
}

// Of the hidden states that a later stage takes.
int64_t hidden_size_of(const nn::Model& stage) {
  const auto& shapes = dynamic_cast<const pipeline::ModuleSupportsPipelining&>(stage);
  const at::Tensor ids = at::empty({1, 1 << 12}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));
  return shapes.infer_stage_inputs_from_pipeline_inputs({{"input_ids", ids}}, 1).at("hidden_states").size(-1);
}
}  // namespace

void Trainer::build_model() {
  if (config_.debug.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  if (config_.parallelism.pipeline_parallel_degree > 1) {
    build_stages();
  } else {
    model_ = spec_.build.model(config_, *args_, {});
    if (config_.peft.enabled()) {
      peft::inject_peft_and_freeze(config_.peft.to_method(head_module(*args_)), *model_);
    }
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
  require(
      static_cast<bool>(spec_.parallelize),
      "model.name: the train spec of {} does not say how its models are laid out on several ranks "
      "(TrainSpec::parallelize); train it on one",
      spec_.family.name);
  const shard::ParallelizeOptions options{
      .fully_shard =
          {.compute = compute_type(config_.training),
           .reduce = reduce_type(config_.training),
           .reshard_after_forward = config_.parallelism.fsdp_reshard_after_forward,
           .reduce_each_microbatch = config_.parallelism.fsdp_reduce_each_microbatch},
      .context_method = config_.parallelism.context_parallel_rotate_method};
  sharded_.push_back(spec_.parallelize(*ranks_.context(), model, options));
  shard::check_plan(
      *ranks_.context(), model, {.hidden_size = stage.is_current_stage_first() ? 0 : hidden_size_of(model)});
}

}  // namespace lehr::train
