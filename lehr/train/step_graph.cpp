#include "lehr/train/step_graph.h"

#include <utility>

#include "lehr/base/error.h"
#include "lehr/train/config.h"

namespace lehr::train {

void check_cuda_graphs(const TrainConfig& config, at::Device device, int64_t ranks, bool has_experts) {
  if (!config.training.cuda_graphs) {
    return;
  }
  const char* const key = "training.cuda_graphs";
  require(device.is_cuda(), "{}: graphs are recorded on a GPU, but this run computes on the CPU; remove the key", key);
  require(ranks == 1, "{}: a graph holds the work of one device; remove the key on {} ranks", key, ranks);
  require(
      !config.parallelism.fsdp_cpu_offload,
      "{}: a graph holds the work of the device, but with parallelism.fsdp_cpu_offload the host waits for each gradient "
      "that is copied to it; remove one of the two",
      key);
  require(
      !has_experts,
      "{}: a model with experts counts their tokens, but a graph would count those of all steps in the same memory; "
      "remove the key",
      key);
  require(
      !reads_whole_texts(config.training.task),
      "{}: the sequences of {} differ in length, but a graph has one shape; remove the key",
      key,
      descriptor::model_with(head_of(config.training.task)));
  require(
      config.peft.dropout == 0,
      "{}: dropout (peft.dropout = {}) draws new masks in every step, but a graph repeats one; remove one of the two",
      key,
      config.peft.dropout);
}

namespace {
std::string shape_of(const Batch& batch) {
  std::string text;
  for (const auto& [name, tensor] : batch) {
    text += fmt::format("{} {}", name, c10::toString(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) {
      text += fmt::format(" {}", size);
    }
    text += '\n';
  }
  return text;
}
}  // namespace

StepGraph::StepGraph(std::vector<nn::NamedParameter> parameters, ops::Recorder recorder, Run run)
    : parameters_(std::move(parameters)), recorder_(std::move(recorder)), run_(std::move(run)) {}

// Returns a tensor with its own storage in that memory. Tensors derived from it (views, detached tensors) share the
// storage, so end_loans() detects whether any is kept, and can give it other memory.
at::Tensor StepGraph::lend(const at::Tensor& memory) {
  at::Tensor shown = at::from_blob(
      memory.mutable_data_ptr(),
      memory.sizes(),
      memory.strides(),
      [memory](void*) {},
      memory.options(),
      memory.device());
  lent_.push_back({memory, shown.storage().getWeakStorageImpl()});
  return shown;
}

// Runs before a replay. The copies are enqueued on the current stream, like the replay after them.
void StepGraph::end_loans() {
  for (const Lent& loan : lent_) {
    if (const auto kept = loan.shown.lock()) {
      const at::Tensor copy = at::empty_strided(loan.memory.sizes(), loan.memory.strides(), loan.memory.options());
      copy.copy_(loan.memory);
      kept->set_data_ptr(copy.storage().set_data_ptr({}));
    }
  }
  lent_.clear();
}

std::vector<at::Tensor> StepGraph::take_gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor value = parameter->value();
    gradients.push_back(std::exchange(value.mutable_grad(), {}));
  }
  return gradients;
}

StepGraph::Sums StepGraph::run_eagerly(const Batch& batch, int64_t valid) {
  const at::Tensor& like = batch.begin()->second;
  return run_(batch, at::full({}, static_cast<double>(valid), like.options().dtype(at::kDouble)));
}

void StepGraph::record(Shape& shape, const Batch& batch) {
  for (const auto& [name, tensor] : batch) {
    shape.batch[name] = tensor.clone();
  }
  shape.valid = at::zeros({}, batch.begin()->second.options().dtype(at::kDouble));
  try {
    shape.recorded = recorder_->record([this, &shape] {
      Sums sums;
      try {
        sums = run_(shape.batch, shape.valid);
      } catch (...) {
        take_gradients();  // memory of a recording that is discarded
        throw;
      }
      std::vector<at::Tensor> made{sums.loss};
      shape.metrics.clear();
      for (const auto& [name, sum] : sums.metrics) {
        shape.metrics.push_back(name);
        made.push_back(sum);
      }
      for (const at::Tensor& gradient : take_gradients()) {
        made.push_back(gradient);
      }
      return made;
    });
  } catch (const std::exception& problem) {
    fail(
        "training.cuda_graphs: forward and backward of this model and task cannot be recorded; remove the key. Message "
        "of CUDA or LibTorch: {}",
        problem.what());
  }
}

StepGraph::Sums StepGraph::operator()(const Batch& batch, int64_t valid, bool only) {
  std::vector<at::Tensor> before = take_gradients();
  Sums sums;
  std::vector<at::Tensor> gradients;
  Shape& shape = shapes_[shape_of(batch)];
  const bool may_record = !shape.recorded && recordings_ < kMostShapes;
  const bool warms_up = may_record && shape.runs++ < kWarmups;
  if (may_record && !warms_up) {
    record(shape, batch);
    ++recordings_;
  }
  const bool recorded = shape.recorded != nullptr;
  if (recorded) {
    end_loans();
    for (const auto& [name, tensor] : batch) {
      shape.batch.at(name).copy_(tensor);
    }
    shape.valid.fill_(static_cast<double>(valid));
    shape.recorded->replay();
    auto made = shape.recorded->made().begin();
    sums.loss = (made++)->clone();
    for (const std::string& name : shape.metrics) {
      sums.metrics[name] = (made++)->clone();
    }
    gradients.assign(made, shape.recorded->made().end());
  } else if (warms_up) {
    recorder_->warm_up([&] {
      sums = run_eagerly(batch, valid);
      gradients = take_gradients();
    });
  } else {
    sums = run_eagerly(batch, valid);
    gradients = take_gradients();
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor value = parameters_[i].parameter->value();
    at::Tensor gradient = gradients[i];
    if (before[i].defined() && gradient.defined()) {
      gradient = before[i].add_(gradient);
    } else if (before[i].defined()) {
      gradient = before[i];
    } else if (gradient.defined() && recorded) {
      gradient = only ? lend(gradient) : gradient.clone();
    }
    value.mutable_grad() = gradient;
  }
  return sums;
}

}  // namespace lehr::train
