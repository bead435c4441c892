#include "lehr/train/model_stage.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "lehr/base/error.h"
#include "lehr/shard/expert_parallel.h"
#include "lehr/train/teacher.h"

namespace lehr::train {

namespace {
using pipeline::TensorDict;

const char* const kRouterTotals = "router_totals";
const char* const kTeacher = "teacher_";         // before the names of a teacher's tensors, which have no gradients
const char* const kDistance = "layer_distance";  // of earlier stages' layers from the teacher's
const char* const kLoss = "loss";
const char* const kHiddenStates = "hidden_states";

at::Tensor take(TensorDict& tensors, const std::string& name) {
  auto node = tensors.extract(name);
  return node.empty() ? at::Tensor() : std::move(node.mapped());
}

// Takes a teacher's tensors, by the names that the teacher gave them.
TensorDict take_of_teacher(TensorDict& tensors) {
  TensorDict of_teacher;
  std::erase_if(tensors, [&](auto& entry) {
    const bool is_its = entry.first.starts_with(kTeacher);
    if (is_its) {
      of_teacher[entry.first.substr(std::string_view(kTeacher).size())] = std::move(entry.second);
    }
    return is_its;
  });
  return of_teacher;
}

void add_of_teacher(const TensorDict& of_teacher, TensorDict& tensors) {
  for (const auto& [name, tensor] : of_teacher) {
    tensors[kTeacher + name] = tensor;
  }
}
}  // namespace

ModelStage::ModelStage(Parts parts)
    : parts_(std::move(parts)),
      shapes_(dynamic_cast<const pipeline::ModuleSupportsPipelining*>(&parts_.model)),
      routers_(parts_.model.router_losses() != nullptr ? *parts_.model.router_losses() : counts_),
      teacher_(parts_.task.teacher_of_stage(parts_.info.current_stage)) {
  if (&routers_ == &counts_ && parts_.num_experts > 0 && parts_.mesh != nullptr) {
    shard::share_router_losses(*parts_.mesh, counts_);
  }
}

void ModelStage::begin(StageStep& step) {
  step_ = &step;
  for (auto& [number, kept] : kept_) {
    kept.weights->discard();  // of a failed step
  }
  kept_.clear();
  done_ = 0;
  if (parts_.sharded != nullptr) {
    parts_.sharded->set_last_microbatch(false);
  }
}

// Adds the specs of what is sent with a micro-batch's hidden states: of router counts and of a teacher.
TensorDict ModelStage::with_others(TensorDict specs, const TensorDict& of_teacher) const {
  specs.erase("input_ids");
  for (const char* of_the_head : {"logps", "scores", "embeddings"}) {
    specs.erase(of_the_head);
  }
  if (step_->router_losses.load_balancing > 0 || step_->router_losses.z > 0) {
    const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kDouble);
    specs[kRouterTotals] = at::empty({2 * parts_.num_experts + 2}, options);
  }
  add_of_teacher(of_teacher, specs);
  if (teacher_ != nullptr && teacher_->compares_layers()) {
    const at::Tensor& hidden = specs.at(kHiddenStates);  // (B, T, H)
    const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    specs[kDistance] = at::empty(hidden.sizes().slice(0, 2), hidden.options().dtype(wide));
  }
  return specs;
}

TensorDict ModelStage::input_specs(int64_t microbatch) const {
  const Batch& batch = step_->microbatches[static_cast<size_t>(microbatch)].batch;
  return with_others(
      shapes_->infer_stage_inputs_from_pipeline_inputs(batch, 1),
      teacher_ != nullptr ? teacher_->input_specs(batch) : TensorDict());
}

TensorDict ModelStage::output_specs(int64_t microbatch) const {
  const Batch& batch = step_->microbatches[static_cast<size_t>(microbatch)].batch;
  return with_others(
      shapes_->infer_stage_outputs_from_pipeline_inputs(batch, 1),
      teacher_ != nullptr ? teacher_->output_specs(batch) : TensorDict());
}

TensorDict ModelStage::gradient_specs(int64_t microbatch) const {
  TensorDict specs = output_specs(microbatch);
  take_of_teacher(specs);
  return specs;
}

nn::ModelInputs ModelStage::inputs_of(const Batch& batch, const TensorDict& received) const {
  nn::ModelInputs inputs = parts_.task.build_forward_inputs(batch);
  if (!parts_.info.is_current_stage_first()) {
    TensorDict of_model = received;
    of_model.erase(kDistance);
    inputs.receive(std::move(of_model));
  }
  return inputs;
}

// Sends the outputs of a stage before the last one, and keeps the roots of their backward.
void ModelStage::keep_outputs(const nn::ModelOutputs& outputs, Kept& kept, TensorDict& sent) const {
  auto tensors = outputs.to_dict();
  if (outputs.distilled.cosine_distance.defined()) {
    tensors[kDistance] = outputs.distilled.cosine_distance;
  }
  for (const auto& [name, tensor] : tensors) {
    sent[name] = tensor.detach();
    if (tensor.requires_grad()) {
      // A gradient edge, not the tensor itself, whose memory is freed once it is sent.
      kept.roots.push_back(torch::autograd::impl::gradient_edge(tensor));
      kept.root_names.push_back(name);
    }
  }
}

TensorDict ModelStage::forward(int64_t number, TensorDict received) {
  const Microbatch& microbatch = step_->microbatches[static_cast<size_t>(number)];
  parts_.model.set_dropout_stream(step_->seed, static_cast<uint64_t>(step_->step), microbatch.first_row);
  nn::RouterLossWeights weights = step_->router_losses;
  weights.share = microbatch.share;
  routers_.begin(weights);
  const at::Tensor counted = take(received, kRouterTotals);
  TensorDict of_teacher = take_of_teacher(received);
  Kept kept;
  for (auto& [name, tensor] : received) {
    kept.inputs[name] = tensor.detach().set_requires_grad(true);
  }
  nn::ModelInputs inputs = inputs_of(microbatch.batch, kept.inputs);
  inputs.token_mask = microbatch.token_mask;
  TensorDict sent;
  if (teacher_ != nullptr) {
    const auto distance = kept.inputs.find(kDistance);
    add_of_teacher(
        teacher_->run(inputs, std::move(of_teacher), distance != kept.inputs.end() ? distance->second : at::Tensor()),
        sent);
  }
  nn::ModelOutputs outputs;
  {
    kept.weights = std::make_shared<ops::WeightGradients>();
    const ops::WeightGradients::Scope scope(kept.weights);
    outputs = parts_.model.forward(inputs);
  }
  if (counted.defined()) {
    routers_.add_packed(counted);
  }
  if (parts_.info.is_current_stage_last()) {
    const at::Tensor sum = parts_.task.compute_loss(outputs, microbatch.batch);
    const at::Tensor& items = step_->valid_input;
    const at::Tensor loss = items.defined() ? sum / items.to(sum.scalar_type()) : sum / step_->valid;
    kept.roots.push_back(torch::autograd::impl::gradient_edge(loss));
    kept.root_names.emplace_back(kLoss);
    kept.one = at::ones_like(loss.detach());
    step_->sums.add(loss, compute_metrics(parts_.task, outputs, microbatch.batch));
    if (routers_.active()) {
      step_->sums.add_routers(routers_, microbatch.share);
    }
  } else {
    keep_outputs(outputs, kept, sent);
    if (routers_.active()) {
      const at::Tensor so_far = routers_.packed();
      sent[kRouterTotals] =
          so_far.defined()
              ? so_far
              : at::zeros({2 * parts_.num_experts + 2}, outputs.hidden_states.options().dtype(at::kDouble));
    }
  }
  kept.routers = routers_.take();
  kept_[number] = std::move(kept);
  return sent;
}

TensorDict ModelStage::backward(int64_t number, TensorDict gradients, bool weights_later) {
  const Microbatch& microbatch = step_->microbatches[static_cast<size_t>(number)];
  auto found = kept_.find(number);
  invariant(found != kept_.end(), "pipeline: backward of micro-batch {} before its forward, or twice", number);
  Kept& kept = found->second;
  // Recomputed layers draw the same dropout masks and update the same router counts as in forward.
  parts_.model.set_dropout_stream(step_->seed, static_cast<uint64_t>(step_->step), microbatch.first_row);
  routers_.put(kept.routers);
  if (const at::Tensor totals = take(gradients, kRouterTotals); totals.defined()) {
    routers_.set_totals(totals);
  }
  std::vector<at::Tensor> root_gradients;
  for (const std::string& name : kept.root_names) {
    root_gradients.push_back(name == kLoss ? kept.one : gradients.at(name));
  }
  if (weights_later) {
    kept.weights->backward_input(std::exchange(kept.roots, {}), root_gradients);
  } else {
    one_done();
    if (!kept.roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(
          std::exchange(kept.roots, {}),
          root_gradients,
          /*keep_graph=*/false,
          /*create_graph=*/false,
          /*accumulate_grad=*/true);
    }
  }
  TensorDict result;
  for (auto& [name, input] : kept.inputs) {
    const at::Tensor& gradient = input.grad();
    result[name] = gradient.defined() ? gradient : at::zeros_like(input);
  }
  if (!parts_.info.is_current_stage_first() && routers_.active()) {
    result[kRouterTotals] = routers_.packed_totals();
  }
  routers_.begin({});
  if (weights_later) {
    auto weights = std::move(kept.weights);
    kept = {};
    kept.weights = std::move(weights);
  } else {
    kept_.erase(found);
  }
  return result;
}

void ModelStage::backward_weight(int64_t number) {
  auto node = kept_.extract(number);
  invariant(!node.empty(), "pipeline: wgrad of micro-batch {} before its dgrad, or twice", number);
  one_done();
  node.mapped().weights->backward_weight();
}

// Called before the last gradients are computed, because a unit's gradients may be reduced as soon as they are
// complete.
void ModelStage::one_done() {
  ++done_;
  if (parts_.sharded != nullptr) {
    parts_.sharded->set_last_microbatch(done_ == static_cast<int64_t>(step_->microbatches.size()));
  }
}

}  // namespace lehr::train
