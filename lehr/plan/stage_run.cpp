#include "lehr/plan/stage_run.h"

#include <algorithm>

#include "lehr/base/value_of.h"
#include "lehr/meter/memory_meter.h"
#include "lehr/nn/moe.h"
#include "lehr/peft/inject.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/future_tokens.h"

namespace lehr::plan {

train::Batch synthetic_batch(const train::TrainConfig& config, int64_t rows, int64_t vocab_size, at::Device device) {
  const int64_t tokens = config.training.seq_len;
  const auto options = at::TensorOptions().device(device).dtype(at::kLong);
  const auto numbers = [&](at::IntArrayRef shape, int64_t below) {
    // Deterministic in every process: the ids decide the routing, and so the size of the largest expert matmul.
    return device.is_meta() ? at::empty(shape, options)
                            : (at::arange(c10::multiply_integers(shape), options) * 7919).remainder(below).view(shape);
  };
  train::Batch whole{{"input_ids", numbers({rows, tokens}, vocab_size)}};
  const train::TaskKind task = config.training.task;
  if (train::reads_whole_texts(task)) {
    whole["attention_mask"] = at::ones({rows, tokens}, options.dtype(at::kBool));
  }
  if (train::reads_one_position(task)) {
    if (task == train::TaskKind::embedding) {
      whole["valid"] = at::ones({rows}, options.dtype(at::kBool));
    } else {
      whole["labels"] = numbers({rows}, config.training.num_labels);
    }
    whole["pooling_mask"] = at::zeros({rows, tokens}, options.dtype(at::kBool));
    whole["pooling_mask"].narrow(1, tokens - 1, 1).fill_(true);
    return whole;
  }
  whole["position_ids"] = at::arange(tokens, options).repeat({rows, 1});
  if (task == train::TaskKind::token_classification) {
    whole["labels"] = numbers({rows, tokens}, config.training.num_labels);
  } else {
    whole["labels"] = numbers({rows, tokens}, vocab_size);
    whole["document_ids"] = numbers({rows, tokens}, 1);
  }
  return whole;
}

StageRun::StageRun(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place,
    mesh::Transport* transport)
    : config_(config),
      vocab_size_(args.vocab_size()),
      info_{.current_stage = place.stage, .num_stages = static_cast<int64_t>(place.rank_of_stage.size())},
      copies_on_two_ranks_(place.rank_of_stage.front() != place.rank_of_stage.back()),
      ranks_(config.parallelism, transport),
      task_(spec.build.task(config)) {
  if (ranks_.context() != nullptr) {
    task_->use_mesh(*ranks_.context());
  }
  int64_t num_experts = 0;
  const auto add_trained = [&](const nn::Model& model) {
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const auto same = [&, &own = name](const optim::ParameterInfo& other) { return other.name == own; };
      if (parameter->trainable() && std::none_of(trained_.begin(), trained_.end(), same)) {  // tied tables occur twice
        trained_.push_back({.name = name, .shape = parameter->shape()});
      }
    }
  };
  train::StageLayout layout;
  if (staged()) {
    layout = train::lay_out_stages(config, args, spec.build, place.rank_of_stage);
    model_ = layout.models[static_cast<size_t>(info_.current_stage)];
    num_experts = layout.num_experts;
    std::for_each(layout.models.begin(), layout.models.end(), [&](const auto& model) { add_trained(*model); });
  } else {
    model_ = train::build_whole_model(config, args, spec.build);
    add_trained(*model_);
  }
  if (ranks_.world_size() > 1) {
    sharded_.emplace(train::lay_out_stage(config, spec, *ranks_.context(), *model_, info_));
  }
  if (staged()) {
    mesh::DistributedContext& context = *ranks_.context();
    copies_ = std::make_unique<train::StageCopies>(
        layout,
        std::vector<std::pair<int64_t, nn::Model*>>{{info_.current_stage, model_.get()}},
        context.group(mesh::axis::pp));
  }
  stage_ = std::make_unique<train::ModelStage>(train::ModelStage::Parts{
      .model = *model_,
      .info = info_,
      .task = *task_,
      .sharded = sharded(),
      .num_experts = num_experts,
      .mesh = ranks_.context()});
}

StageRun::~StageRun() = default;

void StageRun::allocate(at::Device device) {
  const auto compute = train::compute_type(config_.training);
  const auto materialize_frozen = [&] {
    if (config_.peft.has_adapters()) {
      peft::materialize_frozen(*model_, device, compute);
    }
  };
  if (!device.is_meta()) {
    materialize_frozen();
  }
  nn::materialize(*model_, device, train::parameter_type(config_.training));
  if (device.is_meta()) {
    materialize_frozen();  // last, as tensors on the meta device count as not materialized yet
  }
  if (!device.is_meta()) {
    model_->reset_parameters({.seed = 1});
  }
  if (!sharded_) {
    precision_ = std::make_unique<train::MixedPrecision>(nn::named_parameters(*model_), compute);
  }
  make_batch(device);
}

void StageRun::make_batch(at::Device device) {
  batch_ = ranks_.positions_of(train::with_future_tokens(
      synthetic_batch(config_, train::microbatch_rows(config_), vocab_size_, device), model_->num_mtp_modules()));
}

int64_t StageRun::boundary_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, spec] : send_specs_) {
    bytes += static_cast<int64_t>(spec.nbytes());
  }
  return bytes;
}

void StageRun::begin_step(int64_t microbatches) {
  const int64_t rows = batch_.begin()->second.size(0);
  step_ = {
      .valid = rows * config_.training.seq_len * microbatches,
      .router_losses = {
          .load_balancing = config_.training.router_aux_loss_coef, .z = config_.training.router_z_loss_coef}};
  for (int64_t m = 0; m < microbatches; ++m) {
    step_.microbatches.push_back(
        {.batch = batch_, .first_row = m * rows, .share = 1 / static_cast<double>(microbatches)});
  }
  if (sharded_) {
    sharded_->begin_step();
  }
  stage_->begin(step_);
  const NotCounted shapes;
  recv_specs_ = info_.is_current_stage_first() ? pipeline::TensorDict{} : stage_->input_specs(0);
  send_specs_ = info_.is_current_stage_last() ? pipeline::TensorDict{} : stage_->output_specs(0);
}

pipeline::TensorDict StageRun::made_like(const pipeline::TensorDict& specs) const {
  pipeline::TensorDict made;
  const auto device = batch_.begin()->second.device();
  for (const auto& [name, spec] : specs) {
    const auto options = spec.options().device(device);
    made[name] = device.is_meta() ? at::empty(spec.sizes(), options) : at::ones(spec.sizes(), options);
  }
  return made;
}

void StageRun::forward(int64_t microbatch) {
  stage_->forward(microbatch, made_like(recv_specs_));
}

void StageRun::backward(int64_t microbatch) {
  stage_->backward(microbatch, made_like(send_specs_), /*weights_later=*/false);
  collect();
}

void StageRun::backward_input(int64_t microbatch) {
  stage_->backward(microbatch, made_like(send_specs_), /*weights_later=*/true);
}

void StageRun::backward_weight(int64_t microbatch) {
  stage_->backward_weight(microbatch);
  collect();
}

// Pipelines reduce gradients at the end of a step, other runs after each micro-batch.
void StageRun::collect() {
  if (precision_) {
    precision_->collect_gradients();
  }
  if (sharded_ && !staged()) {
    sharded_->finish_backward();
  }
}

void StageRun::finish_step() {
  if (!staged()) {
    return;
  }
  value_of(sharded_, "layout of the stage").finish_backward();
  if (copies_on_two_ranks_) {
    copies_->collect_gradients();
    copies_->refresh(/*only_trained=*/true);
  }
}

void StageRun::clear_gradients() {
  for (const auto& list : {nn::named_parameters(*model_), nn::named_copies(*model_)}) {
    for (const auto& [name, parameter] : list) {
      at::Tensor value = parameter->value();
      value.mutable_grad().reset();
    }
  }
  if (precision_) {
    precision_->clear_gradients();
  }
}

}  // namespace lehr::plan
