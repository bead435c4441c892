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

void TrainStep::clear_gradients() {
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor value = parameter->value();
    value.mutable_grad().reset();
  }
  precision_.clear_gradients();
}

std::map<std::string, at::Tensor> TrainStep::metrics_of(const nn::ModelOutputs& outputs, const Batch& batch) const {
  at::NoGradGuard no_grad;
  auto sums = task_.compute_metrics(outputs, batch);
  for (const auto& [name, sum] : sums) {
    require(
        sum.defined() && sum.numel() == 1,
        "metric {}: expected one number, found {}; give each of several a name of its own",
        name,
        sum.defined() ? std::to_string(sum.numel()) : "nothing");
  }
  return sums;
}

double TrainStep::share_of(const Batch& part, int64_t valid) const {
  return static_cast<double>(task_.count_valid(part)) / static_cast<double>(valid);
}

StepResult TrainStep::run(const Batch& batch, int64_t step, double lr_factor) {
  struct Clear {
    TrainStep& step;
    ~Clear() { step.clear_gradients(); }
  } const clear{*this};
  const int64_t rows = batch.begin()->second.size(0);
  StepResult result;
  result.valid = task_.count_valid(batch);
  if (result.valid == 0) {
    return result;
  }

  model_.train();
  model_.reset_moe_stats();
  at::Tensor loss_sum;
  std::map<std::string, at::Tensor> metric_sums;
  for (int64_t first = 0; first < rows; first += options_.local_batch_size) {
    const int64_t count = std::min(options_.local_batch_size, rows - first);
    const Batch local = to_device(rows_of(batch, first, count), device_);
    model_.set_dropout_stream(options_.seed, static_cast<uint64_t>(step), first);
    nn::RouterLosses* routers = model_.router_losses();
    const double share = routers != nullptr ? share_of(local, result.valid) : 1;
    if (routers != nullptr) {
      routers->begin(
          {.load_balancing = options_.router_aux_loss_coef, .z = options_.router_z_loss_coef, .share = share});
    }
    const nn::ModelOutputs outputs = model_.forward(task_.build_forward_inputs(local));
    const at::Tensor loss = task_.compute_loss(outputs, local) / result.valid;
    const auto sums = metrics_of(outputs, local);
    if (routers != nullptr && routers->active()) {
      result.metrics["load_balancing_loss"] += share * routers->load_balancing_loss().item<double>();
      result.metrics["router_z_loss"] += share * routers->z_loss().item<double>();
    }
    loss.backward();
    precision_.collect_gradients();
    loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
    at::NoGradGuard no_grad;
    for (const auto& [name, sum] : sums) {
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
  result.tokens_per_expert = model_.moe_tokens_per_expert();
  if (result.tokens_per_expert.defined()) {
    // 1: every expert gets the same; E / top_k: all tokens go to the same ones.
    const at::Tensor load = result.tokens_per_expert.to(at::kDouble);
    result.metrics["expert_load_max"] = (load.amax(-1) / load.mean(-1).clamp_min(1)).max().item<double>();
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
  return result;
}

}  // namespace lehr::train
