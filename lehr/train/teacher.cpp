#include "lehr/train/teacher.h"

#include <utility>
#include <vector>

#include "lehr/nn/head.h"
#include "lehr/pipeline/stage.h"
#include "lehr/shard/fully_shard.h"

namespace lehr::train {

namespace {
constexpr const char* kHiddenStates = "hidden_states";
}  // namespace

TeacherStage::TeacherStage(
    std::shared_ptr<nn::Model> model,
    shard::FullySharded* sharded,
    bool is_last,
    Layers layers,
    const DistillationConfig& config)
    : model_(std::move(model)),
      sharded_(sharded),
      is_last_(is_last),
      layers_(layers),
      compares_layers_(config.cosine_weight > 0),
      loss_{
          .temperature = config.temperature,
          .kl_weight = config.kl_weight * config.temperature * config.temperature,
          .nll_weight = config.loss_weight,
          .ignore_index = nn::kIgnoreIndex} {}

pipeline::TensorDict TeacherStage::run(
    nn::ModelInputs& inputs, pipeline::TensorDict received, const at::Tensor& earlier_distance) {
  auto targets = std::make_shared<nn::DistillationTargets>();
  pipeline::TensorDict results;
  {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> outputs;
    nn::ModelInputs own = inputs;
    own.labels = at::Tensor();  // no loss of its own
    own.receive(std::move(received));
    own.layer_outputs = compares_layers_ ? &outputs : nullptr;
    if (sharded_ != nullptr) {
      sharded_->reset();  // the head is unsharded since the last batch
    }
    nn::ModelOutputs outputs_of_model = model_->forward(own);
    results = std::move(outputs_of_model.cross_layer);
    results[kHiddenStates] = std::move(outputs_of_model.hidden_states);
    if (compares_layers_) {
      targets->layer_outputs.resize(static_cast<size_t>(layers_.all));
      std::move(outputs.begin(), outputs.end(), targets->layer_outputs.begin() + layers_.first);
    }
    if (is_last_) {
      targets->hidden_states = std::exchange(results, {}).at(kHiddenStates);
      // A sharded head is whole since the final norm ran, because both are one unit, and the head was not called. In a
      // pipeline backwards of earlier micro-batches may come later: they read the same memory, which the last forward
      // before them has filled.
      if (sharded_ != nullptr || !head_weight_.defined()) {
        head_weight_ = model_->head_weight();
      }
      targets->head_weight = head_weight_;
      targets->softcap = model_->head_softcap();
    }
  }
  targets->earlier_distance = earlier_distance;
  targets->loss = loss_;
  inputs.distillation = std::move(targets);
  return results;
}

pipeline::TensorDict TeacherStage::input_specs(const Batch& batch) const {
  auto specs = dynamic_cast<const pipeline::ModuleSupportsPipelining&>(*model_).infer_stage_inputs_from_pipeline_inputs(
      batch, 1);
  specs.erase("input_ids");
  return specs;
}

pipeline::TensorDict TeacherStage::output_specs(const Batch& batch) const {
  return is_last_ ? pipeline::TensorDict()
                  : dynamic_cast<const pipeline::ModuleSupportsPipelining&>(*model_)
                        .infer_stage_outputs_from_pipeline_inputs(batch, 1);
}

}  // namespace lehr::train
