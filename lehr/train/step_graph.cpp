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
  require(
      device.is_cuda(), "{}: graphs are recorded on a GPU, and this run computes on the CPU; leave the key out", key);
  require(ranks == 1, "{}: a graph holds the work of one device; leave the key out on {} ranks", key, ranks);
  require(
      !has_experts,
      "{}: a model with experts counts their tokens, which a graph would do in one place for all steps; leave the key "
      "out",
      key);
  require(
      config.training.task != TaskKind::classification,
      "{}: a classifier's rows are as long as their texts, and a graph is of one shape; leave the key out",
      key);
  require(
      config.peft.dropout == 0,
      "{}: dropout (peft.dropout = {}) draws other masks in every step, and a graph repeats one; leave one of the two "
      "out",
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

StepGraph::StepGraph(std::vector<nn::NamedParameter> parameters, ops::Recorder record, Run run)
    : parameters_(std::move(parameters)), record_(std::move(record)), run_(std::move(run)) {}

std::vector<at::Tensor> StepGraph::take_gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor value = parameter->value();
    gradients.push_back(std::exchange(value.mutable_grad(), {}));
  }
  return gradients;
}

StepGraph::Sums StepGraph::run_plainly(const Batch& batch, int64_t valid) {
  const at::Tensor& like = batch.begin()->second;
  return run_(batch, at::full({}, static_cast<double>(valid), like.options().dtype(at::kDouble)));
}

void StepGraph::record(Shape& shape, const Batch& batch) {
  for (const auto& [name, tensor] : batch) {
    shape.batch[name] = tensor.clone();
  }
  shape.valid = at::zeros({}, batch.begin()->second.options().dtype(at::kDouble));
  try {
    shape.recorded = record_([this, &shape] {
      const Sums sums = run_(shape.batch, shape.valid);
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
        "training.cuda_graphs: forward and backward of this model and task cannot be recorded; leave the key out. What "
        "CUDA or LibTorch said: {}",
        problem.what());
  }
}

StepGraph::Sums StepGraph::operator()(const Batch& batch, int64_t valid, bool only) {
  std::vector<at::Tensor> before = take_gradients();
  Sums sums;
  std::vector<at::Tensor> gradients;
  Shape& shape = shapes_[shape_of(batch)];
  if (!shape.recorded && shape.runs++ >= kWarmups && recordings_ < kMostShapes) {
    record(shape, batch);
    ++recordings_;
  }
  const bool recorded = shape.recorded != nullptr;
  if (recorded) {
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
  } else {
    sums = run_plainly(batch, valid);
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
    } else if (gradient.defined() && recorded && !only) {
      gradient = gradient.clone();
    }
    value.mutable_grad() = gradient;
  }
  return sums;
}

}  // namespace lehr::train
