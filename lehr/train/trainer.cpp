#include "lehr/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/data/decode_after.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/metric/device_memory.h"
#include "lehr/train/best_checkpoint.h"
#include "lehr/train/corruption.h"
#include "lehr/train/flight_record.h"
#include "lehr/train/generate.h"
#include "lehr/train/local_checkpoints.h"
#include "lehr/train/validate.h"

namespace lehr::train {

namespace {
constexpr auto kResults = "trainer: the results of steps";
}  // namespace

Trainer::Trainer(TrainConfig config, Environment environment)
    : environment_(std::move(environment)), run_(build_run(std::move(config), environment_)) {}

Trainer::~Trainer() = default;

TrainResult Trainer::run() {
  begin();
  while (step()) {
  }
  return finish();
}

void Trainer::begin() {
  emit(Event::ready, run_->state.step);
  result_.step = run_->state.step;
  result_.stopped = false;
  results_.emplace(
      *run_->step, results_are_deferred(), [this](const RunState& state, const StepResult& result, double lr) {
        log_step(state, result, lr);
      });
  validate_if_cut_short();
  rows_ = run_->ranks.share(run_->config.training.rows_per_step());
  batches_ = run_->data.train(rows_, run_->state.sequences_read);
}

bool Trainer::step() {
  require(batches_ != nullptr, "trainer: step() before begin()");
  if (run_->state.step >= run_->config.training.steps || result_.stopped) {
    return false;
  }
  try {
    train_step();
  } catch (...) {
    // Logs the previous step, or throws its error if that is why this one failed. Not with several ranks: the others
    // may be elsewhere, and collectives with them would hide the error.
    if (run_->ranks.context() == nullptr) {
      value_of(results_, kResults).flush();
    }
    write_flight_record(run_->config.job.dump_folder, run_->ranks);
    throw;
  }
  return true;
}

TrainResult Trainer::finish() {
  value_of(results_, kResults).flush();
  close();
  run_->lock.reset();
  return result_;
}

namespace {
// There always is a next batch: finite data have limited the number of steps.
Batch next_batch(BatchStream& batches, RunLog* log) {
  const OperatorScope scope(OperatorKind::data, "lehr::next_batch");
  const double asked = metric::ThroughputMeter::steady_seconds();
  auto batch = batches.next();
  if (log != nullptr) {
    log->waited_for_data(metric::ThroughputMeter::steady_seconds() - asked);
  }
  return std::move(value_of(batch, "trainer: the batch of a step"));
}
}  // namespace

void Trainer::train_step() {
  Run& run = *run_;
  const int64_t step = run.state.step + 1;
  const double lr_factor = run.lr_factor(step - 1);

  begin_step(step);
  const Batch batch = next_batch(*batches_, run.log.get());
  check_arithmetic(run, batch, rows_.first, step);
  StepGradients gradients = run.step->forward_backward(batch, rows_.first, step);
  run.step->clip(gradients);
  LaunchedStep launched = run.step->update(std::move(gradients), lr_factor, value_of(results_, kResults).deferred());
  end_step(std::move(launched), lr_factor);

  if (validation_due(step)) {
    validate(step);
  }
  const bool stop = stop_requested();
  if (save_due(step) || (stop && run.checkpoints)) {
    save(step);
  }
  if (!stop && local_save_due(step)) {
    save_local();
  }
  result_.stopped = stop && step < run.config.training.steps;
}

void Trainer::begin_step(int64_t step) {
  run_->ranks.set_doing(fmt::format("step {}", step));
  emit(Event::step_begin, step);
  if (run_->log) {
    run_->log->step_begins(step);
  }
  if (run_->stragglers) {
    run_->stragglers->step_begins();
  }
}

void Trainer::end_step(LaunchedStep launched, double lr_factor) {
  if (run_->stragglers) {
    run_->stragglers->step_ended(launched.step);
  }
  DeferredResults& results = value_of(results_, kResults);
  results.flush();  // the previous step's
  RunState& state = run_->state;
  state.step = launched.step;
  state.validation_loss.reset();
  state.sequences_read += rows_.global;
  state.num_tokens += launched.result.work.tokens;
  results.add(std::move(launched), state, run_->config.optimizer.lr * lr_factor);
  if (!std::exchange(communicators_logged_, true)) {
    log_communicators();
  }
}

// After the first step all groups that a step needs are connected.
void Trainer::log_communicators() const {
  mesh::DistributedContext* const context = run_->ranks.context();
  if (const int64_t count = context != nullptr ? context->transport().num_communicators() : 0; count > 0) {
    run_->logger.info("ranks      each GPU has {} communicators (docs/launching.md lists their cost)", count);
  }
}

void Trainer::log_step(RunState state, const StepResult& result, double learning_rate) {
  run_->state.skipped += result.updated ? 0 : 1;
  state.skipped = run_->state.skipped;
  if (std::isfinite(result.loss) && result.work.valid > 0) {
    std::vector<double>& losses = run_->state.recent_losses;
    losses.push_back(result.loss);
    const auto extra = static_cast<int64_t>(losses.size()) - run_->config.reliability.spike_window;
    losses.erase(losses.begin(), losses.begin() + std::max<int64_t>(extra, 0));
  }
  result_.step = state.step;
  result_.loss = result.loss;
  const auto metrics =
      run_->log ? run_->log->step_ended(state, result, learning_rate) : learned_metrics(state, result, learning_rate);
  emit(Event::step_end, state.step, &metrics);
}

// All ranks defer, or none: a handler on one rank concerns them all.
bool Trainer::results_are_deferred() const {
  const ProfilingConfig& profiling = run_->config.profiling;
  const bool deferrable = environment_.deferred_results.value_or(run_->device.is_cuda()) &&
                          run_->step->can_defer_readback() && !profiling.enable_profiling &&
                          !profiling.operator_table && !run_->events.has_subscribers(Event::gradients_ready) &&
                          !run_->events.has_subscribers(Event::step_end);
  return !run_->ranks.any(!deferrable);
}

bool Trainer::due(int64_t every, int64_t step) const {
  return step % every == 0 || step == run_->config.training.steps;
}

bool Trainer::validation_due(int64_t step) const {
  return run_->config.validation.enable && due(run_->config.validation.freq, step);
}

bool Trainer::save_due(int64_t step) const {
  return run_->checkpoints && due(run_->config.checkpoint.interval, step);
}

bool Trainer::local_save_due(int64_t step) const {
  return run_->checkpoints && run_->checkpoints->local().are_on() && step < run_->config.training.steps &&
         step % run_->config.checkpoint.local_interval == 0;
}

// Exchanges the memory of the ranks too, as they exchange something anyway.
bool Trainer::stop_requested() {
  const bool here = environment_.stop_requested && environment_.stop_requested();
  if (run_->ranks.world_size() == 1) {
    return here;
  }
  const metric::PeakMemory peak = metric::peak_memory(run_->device);
  std::vector<int64_t> numbers{here ? 1 : 0, peak.resident, peak.device_allocated, peak.device_reserved};
  run_->ranks.highest(numbers);
  if (run_->log) {
    run_->log->peak_of_ranks({.resident = numbers[1], .device_allocated = numbers[2], .device_reserved = numbers[3]});
  }
  return numbers[0] != 0;
}

// Time that does not count as training time, on the rank that measures it.
class Trainer::Pause {
 public:
  Pause(RunLog* log, RunLog::Pause reason) : log_(log) {
    if (log_ != nullptr) {
      log_->pause(reason);
    }
  }
  ~Pause() {
    if (log_ != nullptr) {
      log_->resume();
    }
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  RunLog* log_;
};

// A stop may have interrupted the last validation of the run that this one resumes. If one interrupts it again, the run
// ends without a step, so that the next start repeats it.
void Trainer::validate_if_cut_short() {
  const int64_t step = run_->state.step;
  if (run_->ranks.any(step > 0 && validation_due(step) && run_->log && !run_->log->has_validation(step))) {
    result_.stopped = !validate(step) && step < run_->config.training.steps;
    if (run_->config.checkpoint.keep_best && run_->state.validation_loss) {
      save(step);  // its checkpoint was saved without the loss
    }
  }
}

// Returns false, on all ranks, if a stop interrupted it.
bool Trainer::validate(int64_t step) {
  value_of(results_, kResults).flush();
  Run& run = *run_;
  run.ranks.set_doing(fmt::format("the validation after step {}", step));
  const Pause pause(run.log.get(), RunLog::Pause::validation);
  const int64_t rows = run.config.validation.local_batch_size * run.ranks.data_parallel_size();
  const auto stream = run.data.validation(run.ranks.share(rows), run.config.validation.max_rows());
  const ValidationResult measured = run.spec.build.validate(
      *run.model, *run.task, *stream, {.stop = environment_.stop_requested, .ranks = &run.ranks, .device = run.device});
  if (!measured.complete) {
    return false;
  }
  result_.validation_loss = measured.loss;
  if (run.config.checkpoint.keep_best && std::isfinite(measured.loss)) {
    run.state.validation_loss = measured.loss;
  }
  const auto metrics = run.log ? run.log->validated(step, measured) : learned_metrics(measured);
  emit(Event::validation_end, step, &metrics);
  return true;
}

void Trainer::save(int64_t step) {
  value_of(results_, kResults).flush();
  Run& run = *run_;
  run.ranks.set_doing(fmt::format("the save after step {}", step));
  const Pause pause(run.log.get(), RunLog::Pause::save);
  auto problem = run.checkpoints->save(run.state);
  last_save_problem_.reset();
  if (run.config.checkpoint.async_mode == "disabled") {
    problem = last_save_problem_ = run.checkpoints->wait();
  }
  if (const auto seconds = run.checkpoints->write_seconds(); run.log && seconds) {
    run.log->wrote(*seconds);
  }
  if (problem) {
    run.logger.error("{}; training continues, and earlier checkpoints are kept", *problem);
  }
  warn_of_checkpoints();
  saved_step_ = step;
  emit(Event::checkpoint_requested, step);
}

// It counts as time of the step, since it may follow every step.
void Trainer::save_local() {
  value_of(results_, kResults).flush();
  Run& run = *run_;
  run.ranks.set_doing(fmt::format("the local checkpoint after step {}", run.state.step));
  if (const auto problem = run.checkpoints->save_local(run.state)) {
    run.logger.warn("{}; training continues", *problem);
  }
}

namespace {
// Waits for the checkpoint that is being written. Throws if it, or the last one (`known`), was not saved.
void require_saved(RunCheckpoints& checkpoints, const std::optional<std::string>& known) {
  if (const auto problem = checkpoints.wait(); problem || known) {
    fail_runtime("{}; earlier checkpoints are kept", problem ? *problem : *known);
  }
}
}  // namespace

void Trainer::save_now() {
  require(run_->checkpoints != nullptr, "checkpoint.enable: is false, so the run saves no checkpoint; set it to true");
  if (saved_step_ != run_->state.step) {
    save(run_->state.step);
  }
  finish_save();
}

// Throws if the last checkpoint was not saved. The next save_now() of this step then tries it again.
void Trainer::finish_save() {
  try {
    require_saved(*run_->checkpoints, last_save_problem_);
  } catch (const Error&) {
    saved_step_ = -1;
    last_save_problem_.reset();
    throw;
  }
  warn_of_checkpoints();
}

void Trainer::warn_of_checkpoints() {
  for (const std::string& warning : run_->checkpoints->take_warnings()) {
    if (run_->ranks.is_main()) {
      run_->logger.warn("{}", warning);
    }
  }
}

void Trainer::close() {
  if (run_->checkpoints) {
    const int64_t step = run_->state.step;
    if (run_->checkpoints->local().has_any() && saved_step_ != step && step > run_->checkpoints->newest_on_disk()) {
      save(step);  // until now only a local checkpoint has this state, if any
    }
    finish_save();
    run_->checkpoints->local().close();
    if (run_->config.checkpoint.keep_best && run_->ranks.is_main()) {
      run_->logger.info("best       {}", describe_best(run_->config));
    }
  }
  if (run_->log) {
    run_->log->finish();
  }
  if (result_.stopped) {
    return;
  }
  if (run_->config.sample.prompt) {
    write_sample();
  }
  emit(Event::finished, run_->state.step);
}

// All ranks generate the same text, since each holds a part of the model.
void Trainer::write_sample() {
  Run& run = *run_;
  Prompt prompt = sample_prompt(run);
  const SampleConfig& sample = run.config.sample;
  SamplingOptions sampling{
      .max_new_tokens = sample.max_new_tokens,
      .temperature = sample.temperature,
      .top_k = sample.top_k,
      .top_p = sample.top_p,
      .seed = static_cast<uint64_t>(run.config.debug.seed),
      .stop_ids = std::move(prompt.stop_ids),
      .max_positions = run.args->max_position_ids(),
      .device = run.device,
      .ranks = &run.ranks};
  run.model->eval();
  const auto ids = generate(*run.model, prompt.ids, sampling);
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  const bool chat = run.config.training.task == TaskKind::sft;
  if (run.log) {
    const std::vector<int32_t> before(chat ? prompt.ids.end() : prompt.ids.begin(), prompt.ids.end());
    run.log->sample(
        value_of(sample.prompt, "sample.prompt") + (chat ? "\n\n" : ""),
        data::decode_after(*run.tokenizer, before, narrow, /*skip_special=*/false));
  }
}

}  // namespace lehr::train
