#include "lehr/train/step.h"

#include <algorithm>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/base/operator_profile.h"
#include "lehr/base/side_stream.h"
#include "lehr/nn/moe.h"
#include "lehr/shard/expert_parallel.h"
#include "lehr/shard/gradient_norm.h"
#include "lehr/train/pipeline.h"

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
    moved[name] = to_device_pinned(tensor, device);
  }
  return moved;
}

optim::Placement placement_of(const nn::Parameter& parameter) {
  if (parameter.box() == whole_box(parameter.shape())) {
    return {};
  }
  optim::Placement placement{.shape = parameter.shape()};
  for (const Range& range : parameter.box()) {
    placement.offset.push_back(range.begin);
  }
  return placement;
}

TrainStep::TrainStep(nn::Model& model, const TrainTask& task, optim::Optimizer& optimizer, Options options)
    : model_(model),
      task_(task),
      optimizer_(optimizer),
      options_(options),
      parameters_(nn::named_parameters(model)),
      precision_(options.sharded != nullptr ? std::vector<nn::NamedParameter>{} : parameters_, options.compute),
      device_(options.device.value_or(parameters_.front().parameter->value().device())),
      ranks_(options.ranks != nullptr ? *options.ranks : one_device_) {
  if (options_.recorder) {
    graph_.emplace(parameters_, options_.recorder, [this](const Batch& local, const at::Tensor& valid_items) {
      return run_recorded(local, valid_items);
    });
  }
}

template <class Do>
void TrainStep::each_sharded(const Do& action) {
  if (options_.sharded != nullptr) {
    std::for_each(options_.sharded->begin(), options_.sharded->end(), action);
  }
}

void TrainStep::clear_gradients() {
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor value = parameter->value();
    value.mutable_grad().reset();
  }
  precision_.clear_gradients();
  if (options_.pipeline != nullptr) {
    options_.pipeline->copies().clear_gradients();
  }
}

void TrainStep::refresh() {
  precision_.refresh();
  if (options_.pipeline != nullptr) {
    options_.pipeline->copies().refresh();
  }
  each_sharded([](shard::FullySharded& sharded) { sharded.reset(); });
}

int64_t TrainStep::count_valid(const Batch& batch) const {
  std::vector<double> count{static_cast<double>(task_.count_valid(batch))};  // exact below 2^53
  ranks_.sum_over_rows(count);
  return static_cast<int64_t>(count[0]);
}

// Forward and backward of some of the step's rows.
void TrainStep::run_rows(const Batch& rows, int64_t first_row, int64_t step, int64_t valid, bool only, StepSums& sums) {
  const Batch local = to_device(ranks_.positions_of(rows), device_);
  if (graph_) {
    const auto [loss, metrics] = (*graph_)(local, valid, only);
    sums.add(loss, metrics);
    return;
  }
  model_.set_dropout_stream(options_.seed, static_cast<uint64_t>(step), first_row);
  nn::RouterLosses* routers = model_.router_losses();
  const double share =
      routers != nullptr ? static_cast<double>(task_.count_valid(rows)) / static_cast<double>(valid) : 1;
  if (routers != nullptr) {
    routers->begin({.load_balancing = options_.router_aux_loss_coef, .z = options_.router_z_loss_coef, .share = share});
  }
  const nn::ModelOutputs outputs = model_.forward(task_.build_forward_inputs(local));
  const at::Tensor loss = task_.compute_loss(outputs, local) / valid;
  const auto metrics = compute_metrics(task_, outputs, local);
  if (routers != nullptr && routers->active()) {
    sums.add_routers(*routers, share);
  }
  loss.backward();
  precision_.collect_gradients();
  each_sharded([](shard::FullySharded& sharded) { sharded.finish_backward(); });
  sums.add(loss, metrics);
}

// The same for what need not be told anything but the batch.
StepGraph::Sums TrainStep::run_recorded(const Batch& local, const at::Tensor& valid) {
  const nn::ModelOutputs outputs = model_.forward(task_.build_forward_inputs(local));
  const at::Tensor sum = task_.compute_loss(outputs, local);
  const at::Tensor loss = sum / valid.to(sum.scalar_type());
  auto metrics = compute_metrics(task_, outputs, local);
  loss.backward();
  precision_.collect_gradients();
  return {loss.detach(), std::move(metrics)};
}

StepSums TrainStep::run_all_rows(const Batch& batch, int64_t first_row, int64_t step, int64_t valid) {
  if (options_.pipeline != nullptr) {
    StageStep all{
        .seed = options_.seed,
        .step = step,
        .valid = valid,
        .router_losses = {.load_balancing = options_.router_aux_loss_coef, .z = options_.router_z_loss_coef}};
    options_.pipeline->run(batch, first_row, device_, all);
    return all.sums;
  }
  StepSums sums;
  const int64_t rows = batch.begin()->second.size(0);
  for (int64_t first = 0; first < rows; first += options_.local_batch_size) {
    const int64_t count = std::min(options_.local_batch_size, rows - first);
    each_sharded([&](shard::FullySharded& sharded) { sharded.set_last_microbatch(first + count == rows); });
    run_rows(rows_of(batch, first, count), first_row + first, step, valid, count == rows, sums);
  }
  return sums;
}

// Of the mixtures that are here, over all ranks that have tokens of the step.
at::Tensor TrainStep::count_tokens_per_expert() {
  return ranks_.context() != nullptr ? shard::reduce_expert_loads(*ranks_.context(), model_)
                                     : model_.moe_tokens_per_expert();
}

namespace {
// The numbers of a step in the order in which they travel, before the task's metrics.
constexpr int64_t kGradNorm = 0;
constexpr int64_t kLoadBalancing = 1;  // and the routers' z loss behind it
constexpr int64_t kLoss = 3;           // and the task's metrics behind it

// What must be finite.
double judged(const StepResult& result) {
  return std::isfinite(result.loss) ? result.grad_norm : result.loss;
}
}  // namespace

// The result, from what the ranks counted, each for its own tokens.
void TrainStep::read(LaunchedStep& launched) {
  StepResult& result = launched.result;
  const at::Tensor on_host = launched.numbers.wait().cpu();
  const auto* first = on_host.const_data_ptr<double>();
  result.grad_norm = first[kGradNorm];
  std::vector<double> losses(first + kLoadBalancing, first + kLoss);
  std::vector<double> numbers(first + kLoss, first + on_host.numel());
  result.tokens_per_expert = launched.tokens_per_expert.wait();
  ranks_.sum_over_tokens(numbers);
  const std::string loss;  // no metric is called by no name
  std::map<std::string, double> totals{{loss, numbers[0]}};
  size_t place = 1;
  for (const std::string& name : launched.metrics) {
    totals[name] = numbers[place++] / static_cast<double>(result.valid);
  }
  if (balances()) {
    ranks_.sum_over_rows(losses);  // they are of whole rows already
    totals["load_balancing_loss"] = losses[0];
    totals["router_z_loss"] = losses[1];
  }
  if (options_.pipeline != nullptr) {
    options_.pipeline->share(totals);
    result.tokens_per_expert = options_.pipeline->all_mixtures(result.tokens_per_expert);
  }
  result.loss = totals.extract(loss).mapped();
  result.metrics = std::move(totals);
  if (result.tokens_per_expert.defined()) {
    // 1: every expert gets the same; E / top_k: all tokens go to the same ones.
    const at::Tensor load = result.tokens_per_expert.to(at::kDouble);
    const at::Tensor experts = load.ge(0).sum(-1);  // negative: the mixture has no such expert
    const at::Tensor mean = load.clamp_min(0).sum(-1) / experts;
    result.metrics["expert_load_max"] = (load.amax(-1) / mean.clamp_min(1)).max().item<double>();
  }
}

at::Tensor TrainStep::gradient_norm(const std::vector<optim::NamedParameter>& updates) const {
  if (ranks_.context() != nullptr) {
    return shard::gradient_norm(parameters_, *ranks_.context());
  }
  std::vector<at::Tensor> gradients;
  for (const auto& update : updates) {
    gradients.push_back(update.grad);
  }
  return optim::global_norm(gradients);
}

void TrainStep::update_parameters(
    const std::vector<optim::NamedParameter>& updates, const optim::StepOptions& options) {
  OperatorScope scope(OperatorKind::optimizer, "lehr::optimizer_step");
  if (profiles_operators()) {  // values and state are read and written, gradients read
    int64_t bytes = 2 * optimizer_.state_bytes();
    for (const optim::NamedParameter& update : updates) {
      bytes += static_cast<int64_t>(2 * update.value.nbytes() + (update.grad.defined() ? update.grad.nbytes() : 0));
    }
    scope.moves(bytes);
  }
  optimizer_.step(updates, options);
}

bool TrainStep::can_be_late() const {
  return ranks_.context() == nullptr && options_.pipeline == nullptr && options_.sharded == nullptr &&
         options_.non_finite == optim::NonFinitePolicy::stop && optimizer_.takes_found_inf();
}

StepResult TrainStep::run(const Batch& batch, int64_t first_row, int64_t step, double lr_factor) {
  return finish(launch(batch, first_row, step, lr_factor, /*late=*/false));
}

StepResult TrainStep::finish(LaunchedStep launched) {
  if (launched.late) {
    read(launched);
    launched.result.updated = admit(launched);
  }
  return std::move(launched.result);
}

bool TrainStep::admit(const LaunchedStep& launched) const {
  return optim::admit_step(judged(launched.result), options_.non_finite, launched.step);
}

LaunchedStep TrainStep::launch(const Batch& batch, int64_t first_row, int64_t step, double lr_factor, bool late) {
  struct Clear {
    TrainStep& step;
    bool done = false;
    ~Clear() {
      step.clear_gradients();
      if (!done) {
        step.each_sharded([](shard::FullySharded& sharded) { sharded.reset(); });
      }
    }
  } clear{*this};
  LaunchedStep launched{.step = step};
  StepResult& result = launched.result;
  result.valid = count_valid(batch);
  if (result.valid == 0) {
    return launched;
  }

  model_.train();
  model_.reset_moe_stats();
  each_sharded([](shard::FullySharded& sharded) { sharded.begin_step(); });
  const StepSums sums = run_all_rows(batch, first_row, step, result.valid);

  std::vector<optim::NamedParameter> updates;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->trainable()) {
      updates.push_back(
          {.name = name,
           .value = parameter->value(),
           .grad = parameter->value().grad(),
           .placement = placement_of(*parameter)});
    }
  }
  const at::Tensor norm = gradient_norm(updates);
  at::Tensor tokens_per_expert = count_tokens_per_expert();
  std::vector<at::Tensor> numbers{norm, sums.load_balancing, sums.router_z, sums.loss};
  for (const auto& [name, sum] : sums.metrics) {
    launched.metrics.push_back(name);
    numbers.push_back(sum);
  }
  const at::Tensor packed = pack_numbers(numbers);
  optim::StepOptions update{.lr_factor = lr_factor};
  if (options_.max_norm > 0) {
    update.grad_divisor = optim::clip_divisor(norm, options_.max_norm);
  }
  launched.late = late;
  launched.numbers = HostCopy(packed);
  launched.tokens_per_expert = tokens_per_expert.defined() ? HostCopy(tokens_per_expert) : HostCopy();
  if (late) {
    const at::Tensor failed = (packed[kGradNorm] + packed[kLoss]).isfinite().logical_not().to(at::kFloat);
    failed_ = failed_.defined() ? at::maximum(failed_, failed) : failed;
    update.found_inf = failed_;
    // Without tokens nothing moves a bias.
    tokens_per_expert =
        tokens_per_expert.defined() ? tokens_per_expert * failed_.logical_not().to(at::kLong) : tokens_per_expert;
  } else {
    read(launched);
    result.updated = admit(launched);
  }
  if (late || result.updated) {
    if (options_.gradients_ready) {
      options_.gradients_ready();
    }
    update_parameters(updates, update);
    nn::update_expert_bias(model_, tokens_per_expert, options_.load_balance_coeff);
    refresh();
  }
  clear.done = true;
  return launched;
}

}  // namespace lehr::train
