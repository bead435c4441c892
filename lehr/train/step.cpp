#include "lehr/train/step.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/metric/throughput.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/moe.h"
#include "lehr/shard/expert_parallel.h"
#include "lehr/shard/gradient_norm.h"
#include "lehr/train/future_tokens.h"
#include "lehr/train/loss_spikes.h"
#include "lehr/train/non_finite.h"
#include "lehr/train/pipeline.h"

namespace lehr::train {

optim::ShardSpan placement_of(const nn::Parameter& parameter) {
  if (parameter.box() == whole_box(parameter.shape())) {
    return {};
  }
  optim::ShardSpan placement{.shape = parameter.shape()};
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
      embeddings_(nn::token_embeddings(model)),
      has_experts_(!nn::moe_layers(model).empty()),
      precision_(options.sharded != nullptr ? std::vector<nn::NamedParameter>{} : parameters_, options.compute),
      device_(options.device.value_or(parameters_.front().parameter->value().device())),
      ranks_(options.ranks != nullptr ? *options.ranks : one_device_) {
  if (options_.pipeline == nullptr) {
    whole_.emplace(ModelStage::Parts{
        .model = model_,
        .info = {},
        .task = task_,
        .sharded = options_.sharded != nullptr ? &options_.sharded->front() : nullptr});
  }
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

void TrainStep::refresh(bool only_trained) {
  precision_.refresh();
  if (options_.pipeline != nullptr) {
    options_.pipeline->copies().refresh(only_trained);
  }
  each_sharded([](shard::FullySharded& sharded) { sharded.reset(); });
}

StepWork TrainStep::count_work_of_all(const Batch& batch) const {
  const StepWork own = count_work(task_, batch);
  std::vector<int64_t> counts{own.valid, own.tokens, own.attention_pairs};
  ranks_.sum_over_rows(counts);
  return {.valid = counts[0], .tokens = counts[1], .attention_pairs = counts[2]};
}

// Returns which of this rank's positions of the sequences are tokens, on the device; undefined if all are.
at::Tensor TrainStep::local_token_mask(const Batch& rows) const {
  const at::Tensor mask = has_experts_ ? token_mask(rows) : at::Tensor();  // only routers need it
  return mask.defined() ? to_device(ranks_.positions_of({{"token_mask", mask}}), device_).at("token_mask") : mask;
}

// Cuts a batch into micro-batches, on the device.
StageStep TrainStep::stage_step(const Batch& batch, int64_t first_row, int64_t step, int64_t valid) const {
  StageStep all{
      .seed = options_.seed,
      .step = step,
      .valid = valid,
      .router_losses = {.load_balancing = options_.router_aux_loss_coef, .z = options_.router_z_loss_coef}};
  const int64_t rows = batch.begin()->second.size(0);
  const RowShare rank = ranks_.share(ranks_.data_parallel_size());  // this rank's place among those of other sequences
  for (int64_t first = 0; first < rows; first += options_.local_batch_size) {
    const Batch part = rows_of(batch, first, std::min(options_.local_batch_size, rows - first));
    const int64_t own = balances() ? task_.count_valid(part) : valid;  // only router losses need it
    all.microbatches.push_back(
        {.batch = to_device(ranks_.positions_of(with_future_tokens(part, model_.num_mtp_modules())), device_),
         .first_row = task_.couples_sequences() ? first * rank.global + rank.first * options_.local_batch_size
                                                : first_row + first,
         .share = static_cast<double>(own) / static_cast<double>(valid),
         .token_mask = local_token_mask(part)});
  }
  return all;
}

void TrainStep::run_microbatches(StageStep& step) {
  if (options_.pipeline != nullptr) {
    options_.pipeline->run(device_, step);
    return;
  }
  ModelStage& whole = value_of(whole_, "train: the model as one stage");
  whole.begin(step);
  const auto count = static_cast<int64_t>(step.microbatches.size());
  for (int64_t number = 0; number < count; ++number) {
    if (graph_) {
      const Batch& local = step.microbatches[static_cast<size_t>(number)].batch;
      const auto [loss, metrics] = (*graph_)(local, step.valid, /*only=*/count == 1);
      step.sums.add(loss, metrics);
    } else {
      run_microbatch(number);
    }
  }
}

// Forward and backward of a micro-batch of the whole model's step.
void TrainStep::run_microbatch(int64_t number) {
  ModelStage& whole = value_of(whole_, "train: the model as one stage");
  whole.forward(number, {});
  whole.backward(number, {}, /*weights_later=*/false);
  precision_.collect_gradients();
  each_sharded([](shard::FullySharded& sharded) { sharded.finish_backward(); });
}

// The work of a recording: it uses nothing but the batch and the number of valid items.
StepGraph::Sums TrainStep::run_recorded(const Batch& local, const at::Tensor& valid) {
  StageStep step{.microbatches = {{.batch = local}}, .valid_input = valid};
  value_of(whole_, "train: the model as one stage").begin(step);
  run_microbatch(0);
  return {step.sums.loss, std::move(step.sums.metrics)};
}

// Returns the counts of this rank's MoE layers, summed over all ranks that have tokens of the step.
at::Tensor TrainStep::count_tokens_per_expert() {
  return ranks_.context() != nullptr ? shard::reduce_expert_loads(*ranks_.context(), model_)
                                     : model_.moe_tokens_per_expert();
}

namespace {
// Indices of the step's packed metrics.
constexpr int64_t kGradNorm = 0;
constexpr int64_t kLoadBalancing = 1;
constexpr int64_t kRouterZ = 2;
constexpr int64_t kResident = 3;
constexpr int64_t kLoss = 4;  // the task's metrics follow it

// Returns a value that is finite only if both loss and gradient norm are.
double judged(const StepResult& result) {
  return std::isfinite(result.loss) ? result.grad_norm : result.loss;
}

// Returns this rank's contribution to the memory of all ranks' processes; undefined if there is none.
at::Tensor resident_memory(const Ranks& ranks, at::Device device) {
  if (ranks.context() == nullptr || !ranks.counts_process()) {
    return {};
  }
  const auto bytes = static_cast<double>(metric::process_memory().resident);
  return at::full({}, bytes, at::TensorOptions(device).dtype(at::kDouble));  // no copy for which the host would wait
}
}  // namespace

// Packs the step's metrics into one tensor (n) float64: the gradient norm, which all ranks know, and the sums over
// ranks of the values that each rank counts for its own tokens. All on the device: no host sync. One all-reduce over
// the world, to which ranks whose tokens another rank counts contribute zeros. So all ranks test the same bits for
// being finite, and no other group needs a connection.
at::Tensor TrainStep::pack(const at::Tensor& norm, const StepSums& sums, std::vector<std::string>& metrics) const {
  for (const auto& [name, sum] : sums.metrics) {
    metrics.push_back(name);
  }
  if (options_.pipeline != nullptr) {
    options_.pipeline->share_names(metrics);
  }
  const bool tokens = ranks_.counts_tokens();
  const bool rows = ranks_.counts_rows();
  std::vector<at::Tensor> numbers{
      norm,
      rows ? sums.load_balancing : at::Tensor(),  // covers whole sequences already
      rows ? sums.router_z : at::Tensor(),
      resident_memory(ranks_, norm.device()),
      tokens ? sums.loss : at::Tensor()};
  for (const std::string& name : metrics) {
    const auto sum = sums.metrics.find(name);
    numbers.push_back(tokens && sum != sums.metrics.end() ? sum->second : at::Tensor());
  }
  const at::Tensor packed = pack_numbers(numbers);
  ranks_.sum_over_world(packed.narrow(0, kGradNorm + 1, packed.size(0) - kGradNorm - 1));
  return packed;
}

// Computes the result from the metrics of `pack`.
void TrainStep::read(LaunchedStep& launched) {
  StepResult& result = launched.result;
  if (const at::Tensor& note = launched.unknown_ids.wait(); note.defined()) {
    embeddings_->require_known_ids(note);
  }
  const at::Tensor on_host = launched.numbers.wait().cpu();
  const auto* numbers = on_host.const_data_ptr<double>();
  result.grad_norm = numbers[kGradNorm];
  result.loss = numbers[kLoss];
  result.resident_bytes = numbers[kResident];
  int64_t place = kLoss + 1;
  for (const std::string& name : launched.metrics) {
    result.metrics[name] = numbers[place++] / static_cast<double>(result.work.valid);
  }
  if (balances()) {
    result.metrics["load_balancing_loss"] = numbers[kLoadBalancing];
    result.metrics["router_z_loss"] = numbers[kRouterZ];
  }
  result.tokens_per_expert = launched.tokens_per_expert.wait();
  if (options_.pipeline != nullptr) {
    result.tokens_per_expert = options_.pipeline->all_moe_layers(result.tokens_per_expert);
  }
  if (result.tokens_per_expert.defined()) {
    // 1 if all experts have the same load; E / top_k if all tokens are routed to the same experts.
    const at::Tensor load = result.tokens_per_expert.to(at::kDouble);
    const at::Tensor experts = load.ge(0).sum(-1);  // negative: the layer has no such expert
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

bool TrainStep::can_defer_readback() const {
  // Weights in host memory are updated there, and the host has already waited for their gradients.
  const bool on_device =
      parameters_.empty() || parameters_.front().parameter->value().device().type() == device_.type();
  const bool judged_later = options_.spikes == nullptr || !options_.spikes->acts();
  return on_device && judged_later && options_.non_finite == optim::NonFinitePolicy::stop &&
         optimizer_.takes_found_inf();
}

StepResult TrainStep::run(const Batch& batch, int64_t first_row, int64_t step, double lr_factor) {
  StepGradients gradients = forward_backward(batch, first_row, step);
  clip(gradients);
  return finish(update(std::move(gradients), lr_factor, /*deferred=*/false));
}

StepResult TrainStep::finish(LaunchedStep launched) {
  if (launched.deferred) {
    read(launched);
    admit(launched);
  }
  return std::move(launched.result);
}

// Decides whether the update is applied, equally on all ranks.
void TrainStep::admit(LaunchedStep& launched) const {
  StepResult& result = launched.result;
  if (options_.spikes != nullptr && std::isfinite(result.loss)) {
    result.spike = options_.spikes->see(result.loss);
  }
  const double value = judged(result);
  const bool ends = !std::isfinite(value) && options_.non_finite == optim::NonFinitePolicy::stop;
  const std::string where = ends ? describe_non_finite(parameters_, ranks_) : "";  // every rank has the same value
  result.updated = optim::admit_step(value, options_.non_finite, launched.step, where);
  if (result.updated && result.spike) {
    result.updated = options_.spikes->admit(launched.step, result.loss, *result.spike);
  }
}

void StepGradients::Clear::operator()(TrainStep* step) const {
  step->clear_gradients();
  if (!finished) {
    step->each_sharded([](shard::FullySharded& sharded) { sharded.reset(); });
  }
}

void TrainStep::begin_forward() {
  model_.train();
  model_.reset_moe_stats();
  each_sharded([](shard::FullySharded& sharded) { sharded.begin_step(); });
}

StepGradients TrainStep::forward_backward(const Batch& batch, int64_t first_row, int64_t step) {
  StepGradients gradients(*this, step);
  gradients.launched_.result.work = count_work_of_all(batch);
  const int64_t valid = gradients.launched_.result.work.valid;
  if (valid == 0) {
    return gradients;
  }
  begin_forward();
  StageStep all = stage_step(batch, first_row, step, valid);
  run_microbatches(all);
  gradients.sums_ = std::move(all.sums);
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->trainable()) {
      gradients.parameters_.push_back(
          {.name = name,
           .value = parameter->value(),
           .grad = parameter->value().grad(),
           .placement = placement_of(*parameter)});
    }
  }
  return gradients;
}

void TrainStep::clip(StepGradients& gradients) {
  if (gradients.empty()) {
    return;
  }
  if (options_.gradients_ready) {
    options_.gradients_ready();
  }
  gradients.norm_ = gradient_norm(gradients.parameters_);
  if (options_.max_norm > 0) {
    gradients.divisor_ = optim::clip_divisor(gradients.norm_, options_.max_norm);
  }
}

LaunchedStep TrainStep::update(StepGradients gradients, double lr_factor, bool deferred) {
  LaunchedStep& launched = gradients.launched_;
  if (gradients.empty()) {
    return std::move(launched);
  }
  invariant(gradients.norm_.defined(), "train: update() of step {} without clip()", launched.step);
  at::Tensor tokens_per_expert = count_tokens_per_expert();
  const at::Tensor packed = pack(gradients.norm_, gradients.sums_, launched.metrics);
  launched.deferred = deferred;
  launched.numbers = AsyncCopy(packed);
  launched.tokens_per_expert = tokens_per_expert.defined() ? AsyncCopy(tokens_per_expert) : AsyncCopy();
  if (embeddings_ != nullptr && embeddings_->unknown_ids().defined()) {
    launched.unknown_ids = AsyncCopy(embeddings_->unknown_ids());
  }
  optim::StepOptions options{.lr_factor = lr_factor};
  if (gradients.divisor_.defined()) {
    options.grad_divisor = gradients.divisor_;
  }
  if (deferred) {
    const at::Tensor failed = (packed[kGradNorm] + packed[kLoss]).isfinite().logical_not().to(at::kFloat);
    failed_ = failed_.defined() ? at::maximum(failed_, failed) : failed;
    options.found_inf = failed_;
    // Zero counts leave the expert biases unchanged.
    tokens_per_expert =
        tokens_per_expert.defined() ? tokens_per_expert * failed_.logical_not().to(at::kLong) : tokens_per_expert;
  } else {
    read(launched);
    admit(launched);
  }
  if (deferred || launched.result.updated) {
    if (options_.before_update) {
      options_.before_update();
    }
    update_parameters(gradients.parameters_, options);
    nn::update_expert_bias(model_, tokens_per_expert, options_.load_balance_coeff);
    refresh(/*only_trained=*/true);
  }
  gradients.clear_.get_deleter().finished = true;
  return std::move(launched);
}

}  // namespace lehr::train
