// How a trainer comes to the state that it starts from: a checkpoint of its own, another run's, or fresh values.
#include <algorithm>
#include <filesystem>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/state/weights.h"
#include "lehr/train/initial_load.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/run_log.h"
#include "lehr/train/trainer.h"
#include "lehr/train/weights.h"

namespace lehr::train {

// When a run ends, and where it stands in the schedule, by what it started from.
void Trainer::place_in_time(const RunState& state) {
  config_.training.steps = steps_asked_;
  if (const auto lasts = data_.num_steps(config_.training.rows_per_step())) {
    config_.training.steps = std::min(steps_asked_, std::max(*lasts - state.data_ahead, state.step));
  }
  TrainConfig shifted = config_;
  shifted.training.steps = std::max<int64_t>(config_.training.steps + state.schedule_ahead, 1);
  lr_factor_ = [factor = spec_.build.lr_schedule(shifted), ahead = state.schedule_ahead](int64_t step) {
    return factor(step + ahead);
  };
}

void Trainer::restore() {
  const auto seed = config_.debug.seed;
  std::vector<optim::NamedParameter> trained;
  for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
    if (parameter->trainable()) {
      trained.push_back({.name = name, .value = parameter->value(), .placement = placement_of(*parameter)});
    }
  }
  optimizer_->allocate(trained);
  if (config_.peft.has_adapters()) {
    initial_load_->load(*model_, *optimizer_, ranks_.context(), state_, environment_.log);
    state_.base_fingerprint = weights_fingerprint(state::WeightReader(*config_.checkpoint.initial_load_path));
  }
  if (resumes_from_) {
    state_ = checkpoints_->load(*resumes_from_, state_);
    environment_.log.info(
        "resuming from {}: {} of {} steps done", resumes_from_->string(), state_.step, config_.training.steps);
    const int64_t wanted = config_.checkpoint.load_step;
    if (wanted >= 0 && wanted == state_.step) {
      for (const int64_t step : checkpoints_->went_back_to(wanted)) {
        environment_.log.warn("the later checkpoint of step {} is set aside, as step-{}.aside", step, step);
      }
    } else if (wanted >= 0) {
      environment_.log.info(
          "the run went back to step {} before; remove {} to go back again",
          wanted,
          checkpoints_->went_back_file(wanted).string());
    }
  } else if (config_.peft.has_adapters()) {
    start_adapters();
  } else if (initial_load_) {
    state_ = initial_load_->load(*model_, *optimizer_, ranks_.context(), state_, environment_.log);
    if (!config_.checkpoint.initial_load_model_only) {
      environment_.log.info(
          "going on from {}: {} of {} steps done",
          *config_.checkpoint.initial_load_path,
          state_.step,
          config_.training.steps);
    }
  } else {
    model_->reset_parameters({.seed = static_cast<uint64_t>(seed)});
  }
  place_in_time(state_);
  if (config_.training.steps < steps_asked_) {
    environment_.log.info(
        "the data lasts {} of the {} steps asked for, and is not repeated: the run ends there",
        config_.training.steps,
        steps_asked_);
  }
  step_ = std::make_unique<TrainStep>(
      *model_,
      *task_,
      *optimizer_,
      TrainStep::Options{
          .local_batch_size = config_.training.local_batch_size,
          .max_norm = config_.training.max_norm,
          .non_finite = config_.training.non_finite,
          .compute = compute_type(config_.training),
          .seed = static_cast<uint64_t>(seed),
          .router_aux_loss_coef = config_.training.router_aux_loss_coef,
          .router_z_loss_coef = config_.training.router_z_loss_coef,
          // Routers are frozen under adapters, and so are their biases: no checkpoint of adapters has them.
          .load_balance_coeff = config_.peft.has_adapters() ? 0 : config_.training.load_balance_coeff,
          .ranks = &ranks_,
          .sharded = sharded_.empty() ? nullptr : &sharded_,
          .device = device_,
          .pipeline = pipeline_.get(),
          .recorder = config_.training.cuda_graphs ? ops::record_cuda_graph : ops::Recorder(),
          .gradients_ready = [this] {
            events_.emit(Event::gradients_ready, {.step = state_.step + 1, .model = model_.get()});
          }});
  step_->refresh();
  if (ranks_.is_main()) {
    save_config();
    run_log_ = std::make_unique<RunLog>(
        config_,
        *args_,
        *model_,
        peft::count_trainable(by_names()),
        *optimizer_,
        device_,
        ranks_,
        state_,
        environment_.log,
        expected_memory());
  }
}

// What was asked for this start alone is not for those that come.
void Trainer::save_config() const {
  TrainConfig config = config_;
  config.profiling.operator_table = always_profiles_;
  write_file_atomically(std::filesystem::path(config_.job.dump_folder) / "config.toml", to_toml(config));
}

// Takes a few milliseconds a layer, which the start of a small model, whose memory nobody asks for, shall not wait.
std::optional<ExpectedMemory> Trainer::expected_memory() const {
  constexpr int64_t kLarge = 20'000'000;  // parameters
  if (!environment_.predict_peak || ranks_.world_size() > 1 || !device_.is_cpu() ||
      args_->get_nparams_and_flops(1).num_parameters < kLarge) {
    return std::nullopt;
  }
  try {
    return ExpectedMemory{
        .step = environment_.predict_peak(config_, spec_, *args_),
        .saves = checkpoints_ ? checkpoints_->copied_bytes() : 0};
  } catch (const std::exception&) {
    return std::nullopt;  // a family that does not run on meta, which the run itself need not
  }
}

void Trainer::start_adapters() {
  peft::reset_adapters(*model_, {.seed = static_cast<uint64_t>(config_.debug.seed)});
  if (!config_.peft.init_from) {
    return;
  }
  const std::filesystem::path folder = *config_.peft.init_from;
  require(
      peft::is_adapter_folder(folder), "peft.init_from: {} holds no adapter (adapter_config.json)", folder.string());
  const auto base_names = peft::stored_names(*args_);
  peft::require_same_scaling(peft::read_adapter_config(folder), by_names(), base_names);
  load_weights(
      *model_,
      peft::to_map(peft::adapter_stored_names(by_names(), base_names, peft::tuned_tensors(by_names(), base_names))),
      state::WeightReader(folder, peft::kAdapterStem));
}

}  // namespace lehr::train
