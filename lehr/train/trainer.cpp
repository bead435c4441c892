#include "lehr/train/trainer.h"

#include <utility>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/operator_profile.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/linear_float8.h"
#include "lehr/train/device.h"
#include "lehr/train/generate.h"
#include "lehr/train/initial_load.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/precision.h"
#include "lehr/train/run_log.h"
#include "lehr/train/step_profile.h"

namespace lehr::train {

Trainer::Trainer(TrainConfig config, Environment environment)
    : config_(std::move(config)),
      environment_(std::move(environment)),
      spec_(environment_.specs.at(config_.model)),
      ranks_(config_.parallelism, environment_.transport),
      device_(choose_device(config_.training.device, environment_.transport)),
      tokenizer_(spec_.build.tokenizer(config_)),
      args_(spec_.build.model_args(config_, spec_.family, *tokenizer_)),
      task_(spec_.build.task(config_)),
      always_profiles_(config_.profiling.operator_table) {
  config_.profiling.operator_table = always_profiles_ || environment_.profile;
  StepProfile::check_device(config_, device_);
  if (config_.training.global_batch_size < 0) {
    config_.training.global_batch_size = config_.training.local_batch_size * ranks_.data_parallel_size();
  }
  if (device_.is_cuda()) {
    if (const std::string reason = ops::cuda::open_kernels(); !reason.empty()) {
      environment_.log.info("operators run as plain ATen, without Lehr's CUDA kernels: {}", reason);
    }
  }
  ranks_.require_same("config", to_toml(config_));
  check_mesh(config_, *args_, ranks_);
  check_cuda_graphs(config_, device_, ranks_.world_size(), args_->has_experts());
  require(
      !config_.training.cuda_graphs || ops::records_cuda_graphs(),
      "training.cuda_graphs: needs Lehr's CUDA kernels, and {}; leave the key out, or build them (LEHR_CUDA=ON)",
      ops::cuda::open_kernels());
  if (config_.float8.enable) {
    ops::require_float8(device_, compute_type(config_.training), "float8.enable");
  }
  if (config_.parallelism.pipeline_parallel_degree > 1) {
    plan_stages();
  }
  check_sample();
  ranks_.main_first([this] { open_data(); });  // which leaves tokens in a file
  steps_asked_ = config_.training.steps;
  build_model();
  restore();
}

Trainer::~Trainer() = default;

void Trainer::open_data() {
  data_ = spec_.build.data(
      config_, *tokenizer_, args_->vocab_size(), [&](const std::string& text) { environment_.log.info("{}", text); });
  require(
      !config_.validation.enable || data_.validation,
      "validation.enable: there is no held-out data; set data.validation_fraction or data.validation_path");
  state_ = {
      .seed = config_.debug.seed,
      .rows_per_step = config_.training.rows_per_step(),
      .seq_len = config_.training.seq_len,
      .optimizer = optim::name_of(config_.optimizer.name),
      .data_fingerprint = fmt::format("{:016x}", data_.fingerprint)};
}

Prompt Trainer::sample_prompt() const {
  const auto chat = config_.training.task == TaskKind::sft ? chat_template_of(config_) : nullptr;
  return make_prompt(*config_.sample.prompt, *tokenizer_, chat, args_->eos_token_ids());
}

// Told before the training, not after it.
void Trainer::check_sample() const {
  if (!config_.sample.prompt || args_->head() != descriptor::Head::causal_lm) {
    return;
  }
  require(
      !config_.sample.prompt->empty(),
      "sample.prompt: expected some text, found none; leave the key out for no sample");
  const auto length = static_cast<int64_t>(sample_prompt().ids.size());
  require(
      length + config_.sample.max_new_tokens <= args_->max_position_ids(),
      "sample.max_new_tokens: {} tokens of the prompt and {} new ones do not fit into the model's {} positions "
      "(model.args.max_position_embeddings)",
      length,
      config_.sample.max_new_tokens,
      args_->max_position_ids());
}

namespace {
// There is one: finite data set the number of steps.
std::optional<Batch> next_of(BatchStream& batches) {
  const OperatorScope scope(OperatorKind::data, "lehr::next_batch");
  return batches.next();
}
}  // namespace

bool Trainer::results_are_late() const {
  return environment_.late_results.value_or(device_.is_cuda()) && step_->can_be_late() &&
         !config_.profiling.enable_profiling && !config_.profiling.operator_table &&
         !events_.has_subscribers(Event::gradients_ready) && !events_.has_subscribers(Event::step_end);
}

// The step that `next` is about is the first to fail; the one before it is logged all the same.
template <class Next>
auto Trainer::after(std::optional<DoneStep>& before, const Next& next) {
  try {
    return next();
  } catch (...) {
    conclude(before);  // which throws where that step is why
    throw;
  }
}

// Reads what a step gave, which may wait for the device, and logs it. Throws for a step that ends the run.
void Trainer::conclude(std::optional<DoneStep>& done) {
  if (!done) {
    return;
  }
  auto [launched, state, learning_rate] = *std::exchange(done, {});
  const StepResult result = step_->finish(std::move(launched));
  state_.skipped += result.updated ? 0 : 1;
  state.skipped = state_.skipped;
  result_ = {.step = state.step, .loss = result.loss, .validation_loss = result_.validation_loss};
  const auto metrics =
      run_log_ ? run_log_->step_ended(state, result, learning_rate) : learned_metrics(state, result, learning_rate);
  events_.emit(Event::step_end, {.step = state.step, .model = model_.get(), .metrics = &metrics});
}

TrainResult Trainer::run() {
  const int64_t last = config_.training.steps;
  const RowShare rows = ranks_.share(config_.training.rows_per_step());
  auto batches = data_.train(rows, state_.step + state_.data_ahead);
  events_.emit(Event::ready, {.step = state_.step, .model = model_.get()});
  result_.step = state_.step;
  // A validation that the stop had cut short.
  const bool owed =
      state_.step > 0 && validation_due(state_.step) && run_log_ && !run_log_->has_validation(state_.step);
  if (ranks_.any(owed)) {
    validate_now(state_.step);
  }
  const bool late = results_are_late();
  std::optional<DoneStep> before;  // a step that is not concluded yet
  while (state_.step < last) {
    const int64_t step = state_.step + 1;
    const double factor = lr_factor_(state_.step);
    LaunchedStep launched = after(before, [&] {
      events_.emit(Event::step_begin, {.step = step, .model = model_.get()});
      if (run_log_) {
        run_log_->step_begins(step);
      }
      return step_->launch(*next_of(*batches), rows.first, step, factor, late);
    });
    conclude(before);
    state_.step = step;
    state_.num_tokens += launched.result.valid;
    before = DoneStep{std::move(launched), state_, config_.optimizer.lr * factor};
    if (!late || validation_due(step) || step == last) {
      conclude(before);
    }

    if (validation_due(step)) {
      validate_now(step);
    }
    const bool stop = ranks_.any(environment_.stop_requested && environment_.stop_requested());
    if (checkpoints_ && (stop || due(config_.checkpoint.interval, step))) {
      conclude(before);
      save(step);
    }
    if (stop && step < last) {
      conclude(before);
      result_.stopped = true;
      break;
    }
  }
  finish();
  return result_;
}

// Time that is no training time, on the rank that measures it.
class Trainer::Pause {
 public:
  explicit Pause(RunLog* log) : log_(log) {
    if (log_ != nullptr) {
      log_->pause();
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

void Trainer::validate_now(int64_t step) {
  const Pause pause(run_log_.get());
  const int64_t rows = config_.validation.local_batch_size * ranks_.data_parallel_size();
  const auto stream = data_.validation(ranks_.share(rows), config_.validation.max_rows());
  const ValidationResult measured = spec_.build.validate(
      *model_, *task_, *stream, {.stop = environment_.stop_requested, .ranks = &ranks_, .device = device_});
  if (!measured.complete) {
    return;
  }
  result_.validation_loss = measured.loss;
  const auto metrics = run_log_ ? run_log_->validated(step, measured) : learned_metrics(measured);
  events_.emit(Event::validation_end, {.step = step, .model = model_.get(), .metrics = &metrics});
}

void Trainer::save(int64_t step) {
  const Pause pause(run_log_.get());
  auto problem = checkpoints_->save(state_);
  last_save_problem_.reset();
  if (config_.checkpoint.async_mode == "disabled") {
    problem = last_save_problem_ = checkpoints_->wait();
  }
  if (problem) {
    environment_.log.error("{}; training goes on, the checkpoint before stands", *problem);
  }
  events_.emit(Event::checkpoint_requested, {.step = step, .model = model_.get()});
}

void Trainer::finish() {
  if (checkpoints_) {
    const auto problem = checkpoints_->wait();
    if (problem || last_save_problem_) {
      fail_runtime("{}; the checkpoint before stands", problem ? *problem : *last_save_problem_);
    }
  }
  if (run_log_) {
    run_log_->finish();
  }
  if (result_.stopped) {
    return;
  }
  if (config_.sample.prompt) {
    write_sample();
  }
  events_.emit(Event::finished, {.step = state_.step, .model = model_.get()});
}

// On many ranks all of them write the same text: each holds a part of the model.
void Trainer::write_sample() {
  Prompt prompt = sample_prompt();
  SamplingOptions sampling{
      .max_new_tokens = config_.sample.max_new_tokens,
      .temperature = config_.sample.temperature,
      .top_k = config_.sample.top_k,
      .top_p = config_.sample.top_p,
      .seed = static_cast<uint64_t>(config_.debug.seed),
      .stop_ids = std::move(prompt.stop_ids),
      .max_positions = args_->max_position_ids(),
      .device = device_};
  model_->eval();
  for (shard::FullySharded& sharded : sharded_) {
    sharded.hold();
  }
  const auto ids = generate(*model_, prompt.ids, sampling);
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  const bool chat = config_.training.task == TaskKind::sft;
  if (run_log_) {
    run_log_->sample(*config_.sample.prompt + (chat ? "\n\n" : ""), tokenizer_->decode(narrow));
  }
}

}  // namespace lehr::train
