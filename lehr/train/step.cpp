#include "lehr/train/step.h"

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::train {

Batch rows_of(const Batch& batch, int64_t first, int64_t count) {
  Batch part;
  for (const auto& [name, tensor] : batch) {
    part[name] = tensor.narrow(0, first, count);
  }
  return part;
}

Batch to_device(const Batch& batch, at::Device device) {
  Batch moved;
  for (const auto& [name, tensor] : batch) {
    moved[name] = tensor.to(device, /*non_blocking=*/true);
  }
  return moved;
}

TrainStep::TrainStep(nn::Model& model, const TrainTask& task, optim::AdamW& optimizer, Options options)
    : model_(model),
      task_(task),
      optimizer_(optimizer),
      options_(options),
      parameters_(nn::named_parameters(model)),
      precision_(parameters_, options.compute),
      device_(parameters_.front().parameter->value().device()) {}

StepResult TrainStep::run(const Batch& batch, int64_t step, double lr_factor) {
  const int64_t rows = batch.begin()->second.size(0);
  StepResult result;
  result.valid = task_.count_valid(batch);
  require(result.valid > 0, "step {}: no row of the batch has anything to learn from (all labels are ignored)", step);

  model_.train();
  at::Tensor loss_sum;
  std::map<std::string, at::Tensor> metric_sums;
  for (int64_t first = 0; first < rows; first += options_.local_batch_size) {
    const int64_t count = std::min(options_.local_batch_size, rows - first);
    const Batch local = to_device(rows_of(batch, first, count), device_);
    // One dropout mask a row block, whatever the size of the blocks' neighbours.
    model_.set_dropout_stream(
        options_.seed, static_cast<uint64_t>(step) * static_cast<uint64_t>(rows) + static_cast<uint64_t>(first));
    const nn::ModelOutputs outputs = model_.forward(task_.build_forward_inputs(local));
    const at::Tensor loss = task_.compute_loss(outputs, local) / result.valid;
    loss.backward();
    precision_.collect_gradients();
    loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
    at::NoGradGuard no_grad;
    for (const auto& [name, sum] : task_.compute_metrics(outputs, local)) {
      at::Tensor& total = metric_sums[name];
      total = total.defined() ? total + sum : sum;
    }
  }

  std::vector<optim::NamedParameter> updates;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->trainable()) {
      updates.push_back({name, parameter->value(), parameter->value().grad()});
      gradients.push_back(parameter->value().grad());
    }
  }
  const at::Tensor norm = optim::global_norm(gradients);
  result.loss = loss_sum.item<double>();
  result.grad_norm = norm.item<double>();
  for (const auto& [name, sum] : metric_sums) {
    result.metrics[name] = sum.item<double>() / static_cast<double>(result.valid);
  }
  const double judged = std::isfinite(result.loss) ? result.grad_norm : result.loss;
  result.updated = optim::admit_step(judged, options_.non_finite, step);
  if (result.updated) {
    if (options_.gradients_ready) {
      options_.gradients_ready();
    }
    optim::StepOptions update{.lr_factor = lr_factor};
    if (options_.max_norm > 0) {
      update.grad_divisor = optim::clip_divisor(norm, options_.max_norm);
    }
    optimizer_.step(updates, update);
    precision_.refresh();
  }
  for (auto& update : updates) {
    update.value.mutable_grad().reset();
  }
  return result;
}

}  // namespace lehr::train
