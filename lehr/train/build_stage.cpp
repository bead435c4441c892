#include "lehr/train/build_stage.h"

#include "lehr/base/error.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/shard/context_parallel.h"
#include "lehr/shard/float8_scales.h"
#include "lehr/shard/plan_check.h"
#include "lehr/train/float8.h"
#include "lehr/train/precision.h"

namespace lehr::train {

namespace {
// Returns the module of a classifier's head, found by its stored name; empty for other models. The head starts from
// random values, so it is always trained.
std::string head_module(const descriptor::ModelArgs& args) {
  for (const auto& entry : peft::stored_names(args)) {
    if (entry.stored == "score.weight") {
      return peft::module_of(entry.parameter);
    }
  }
  return "";
}

// What a stage receives and sends of a few tokens, which ranks of tp divide.
shard::PlanInputs plan_inputs(const nn::Model& model, const pipeline::PipelineStageInfo& stage, int64_t tp) {
  shard::PlanInputs inputs{.tokens = 4 * tp};
  if (stage.num_stages == 1) {
    return inputs;
  }
  const auto& shapes = dynamic_cast<const pipeline::ModuleSupportsPipelining&>(model);
  const at::Tensor ids =
      at::empty({inputs.rows, inputs.tokens}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));
  if (!stage.is_current_stage_first()) {
    inputs.received = shapes.infer_stage_inputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
  }
  if (!stage.is_current_stage_last()) {
    inputs.sent = shapes.infer_stage_outputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
  }
  return inputs;
}
}  // namespace

std::shared_ptr<nn::Model> build_with_adapters(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build) {
  auto model = build.model(config, args, {});
  if (config.peft.enabled()) {
    peft::inject_peft_and_freeze(config.peft.to_method(head_module(args)), *model);
  }
  if (config.peft.has_adapters() && config.checkpoint.enable) {  // before a folder is locked for checkpoints
    const auto base_names = peft::stored_names(args);
    peft::adapter_stored_names(*model, base_names, peft::tuned_tensors(*model, base_names));
  }
  return model;
}

std::shared_ptr<nn::Model> build_whole_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build) {
  auto model = build_with_adapters(config, args, build);
  use_float8(config.float8, *model);
  return model;
}

shard::FullySharded lay_out_stage(
    const TrainConfig& config,
    const TrainSpec& spec,
    mesh::DistributedContext& context,
    nn::Model& model,
    const pipeline::PipelineStageInfo& stage,
    std::optional<at::Device> compute_device) {
  require(
      static_cast<bool>(spec.parallelize),
      "model.name: the train spec of {} does not support several ranks (TrainSpec::parallelize); train it on one",
      spec.family.name);
  const shard::ParallelizeOptions options{
      .fully_shard =
          {.compute = compute_type(config.training),
           .reduce = reduce_type(config.training),
           .reshard_after_forward = config.parallelism.fsdp_reshard_after_forward,
           .reduce_each_microbatch = config.parallelism.fsdp_reduce_each_microbatch,
           .compute_device = compute_device},
      .context_method = config.parallelism.context_parallel_rotate_method,
      .expert_parts = config.parallelism.expert_parallel_parts};
  shard::FullySharded sharded = spec.parallelize(context, model, options);
  shard::float8_scales_over_ranks(model, context);
  shard::follow_whole_sequences(context, model);
  shard::check_plan(context, model, plan_inputs(model, stage, config.parallelism.tensor_parallel_degree));
  return sharded;
}

}  // namespace lehr::train
