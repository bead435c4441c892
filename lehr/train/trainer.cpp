#include "lehr/train/trainer.h"

#include <filesystem>
#include <set>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/weights.h"
#include "lehr/train/device.h"
#include "lehr/train/generate.h"
#include "lehr/train/run_log.h"
#include "lehr/train/validate.h"
#include "lehr/train/weights.h"

namespace lehr::train {

namespace {
std::unique_ptr<descriptor::ModelArgs> model_shape(
    const TrainConfig& config, const descriptor::ModelFamilies& families, const data::Tokenizer& tokenizer) {
  const ModelConfig& model = config.model;
  auto args = model.hf_assets_path.empty() ? families.from_flavor(model.name, model.flavor)
                                           : families.from_hf_folder(model.hf_assets_path);
  args->apply(model.args);
  if (config.training.task == TaskKind::classification) {
    args->set_classification(config.training.num_labels, config.training.classifier_dropout);
  } else {
    require(
        args->head() == descriptor::Head::causal_lm,
        "model.hf_assets_path: {} holds a classifier; set training.task = \"classification\"",
        model.hf_assets_path);
  }
  if (model.hf_assets_path.empty()) {
    auto pad = tokenizer.pad_id();
    if (config.training.task == TaskKind::classification && !pad) {
      // As the rows are padded; transformers finds a row's last token by it.
      pad = tokenizer.eos_id().value_or(0);
    }
    args->set_special_tokens(tokenizer.bos_id(), tokenizer.eos_id(), pad);
  }
  args->check("model.args.");
  require(
      args->vocab_size() >= tokenizer.vocab_size(),
      "model.args.vocab_size: expected at least {}, the size of the tokenizer's vocabulary, found {}",
      tokenizer.vocab_size(),
      args->vocab_size());
  require(
      config.training.seq_len <= args->max_position_ids(),
      "training.seq_len: {} tokens do not fit into the model's {} positions (model.args.max_position_embeddings)",
      config.training.seq_len,
      args->max_position_ids());
  return args;
}
}  // namespace

Trainer::Trainer(TrainConfig config, Environment environment)
    : config_(std::move(config)),
      environment_(std::move(environment)),
      device_(choose_device(config_.training.device)) {
  const bool own_tokenizer = !config_.tokenizer.path.empty();
  const std::string& tokenizer_path = own_tokenizer ? config_.tokenizer.path : config_.model.hf_assets_path;
  require(!tokenizer_path.empty(), "tokenizer.path: expected \"byte\" or a folder with tokenizer.json, found nothing");
  tokenizer_ = data::load_tokenizer(tokenizer_path, own_tokenizer ? "tokenizer.path" : "model.hf_assets_path");
  args_ = model_shape(config_, environment_.families, *tokenizer_);
  if (environment_.task) {
    task_ = std::move(environment_.task);
  } else if (config_.training.task == TaskKind::classification) {
    task_ = std::make_unique<ClassificationTask>();
  } else {
    task_ = std::make_unique<CausalLMTask>();
  }
  check_sample();
  open_data();
  schedule_ = std::make_unique<optim::LRSchedule>(config_.lr_scheduler, config_.training.steps);
  build_model();
  restore();
}

Trainer::~Trainer() = default;

void Trainer::open_data() {
  data_ = open_run_data(
      config_, *tokenizer_, args_->vocab_size(), [&](const std::string& text) { environment_.log.info("{}", text); });
  require(
      !config_.validation.enable || data_.validation,
      "validation.enable: there is no held-out data; set data.validation_fraction or data.validation_path");
  const auto lasts = data_.num_steps(config_.training.rows_per_step());
  if (lasts && *lasts < config_.training.steps) {
    environment_.log.info(
        "the data lasts {} of the {} steps asked for, and is not repeated: the run ends there",
        *lasts,
        config_.training.steps);
    config_.training.steps = *lasts;
  }
}

// Told before the training, not after it.
void Trainer::check_sample() const {
  if (!config_.sample.prompt || args_->head() != descriptor::Head::causal_lm) {
    return;
  }
  const auto length = static_cast<int64_t>(tokenizer_->encode(*config_.sample.prompt).size());
  require(length > 0, "sample.prompt: expected some text, found none; leave the key out for no sample");
  require(
      length + config_.sample.max_new_tokens <= args_->max_position_ids(),
      "sample.max_new_tokens: {} tokens of the prompt and {} new ones do not fit into the model's {} positions "
      "(model.args.max_position_embeddings)",
      length,
      config_.sample.max_new_tokens,
      args_->max_position_ids());
}

void Trainer::build_model() {
  const bool balances = config_.training.router_aux_loss_coef > 0 || config_.training.router_z_loss_coef > 0;
  const auto every = nn::ActivationCheckpointing::every_nth(config_.activation_checkpoint.every());
  model_ = args_->build({.checkpointing = every});
  if (config_.debug.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  require(
      !balances || model_->router_losses() != nullptr,
      "training.router_aux_loss_coef: the model has no experts to balance; leave it and training.router_z_loss_coef at "
      "0");
  std::vector<std::string> names;
  for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
    names.push_back(name);
  }
  // Both judge the config by the model's names; nothing is allocated yet.
  optimizer_ = std::make_unique<optim::AdamW>(config_.optimizer, names);
  lock_ = std::make_unique<RunLock>(config_.job.dump_folder);
  const auto root = std::filesystem::path(config_.job.dump_folder) / config_.checkpoint.folder;
  require(
      config_.checkpoint.enable || state::CheckpointStore(root).list().empty(),
      "checkpoint.enable: {} holds checkpoints of an earlier run, which this one would neither continue nor leave its "
      "logs; choose another job.dump_folder",
      root.string());
  if (config_.checkpoint.enable) {
    checkpoints_ = std::make_unique<RunCheckpoints>(config_, *args_, *tokenizer_, *model_, *optimizer_);
  }
  nn::materialize(*model_, device_, parameter_type(config_.training));
}

void Trainer::restore() {
  const auto seed = config_.debug.seed;
  state_ = {
      .seed = seed,
      .rows_per_step = config_.training.rows_per_step(),
      .seq_len = config_.training.seq_len,
      .data_fingerprint = fmt::format("{:016x}", data_.fingerprint)};
  std::vector<optim::NamedParameter> trained;
  for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
    if (parameter->trainable()) {
      trained.push_back({name, parameter->value(), at::Tensor()});
    }
  }
  optimizer_->allocate(trained);
  const auto folder = checkpoints_ ? checkpoints_->find() : std::nullopt;
  if (folder) {
    state_ = checkpoints_->load(*folder, state_);
    environment_.log.info(
        "resuming from {}: {} of {} steps done", folder->string(), state_.step, config_.training.steps);
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
  } else if (config_.checkpoint.initial_load_path) {
    load_initial_weights();
  } else {
    model_->reset_parameters({.seed = static_cast<uint64_t>(seed)});
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
          .gradients_ready = [this] {
            events_.emit(Event::gradients_ready, {.step = state_.step + 1, .model = model_.get()});
          }});
  write_file_atomically(std::filesystem::path(config_.job.dump_folder) / "config.toml", to_toml(config_));
  run_log_ = std::make_unique<RunLog>(config_, *args_, *model_, device_, state_, environment_.log);
}

void Trainer::load_initial_weights() {
  const state::WeightReader reader(*config_.checkpoint.initial_load_path);
  std::set<std::string> may_lack;
  if (args_->head() == descriptor::Head::classification) {
    // A language model has no such head: it starts from random values.
    may_lack.insert("score.weight");
    if (!reader.has("score.weight")) {
      model_->reset_parameters({.seed = static_cast<uint64_t>(config_.debug.seed)});
    }
  }
  for (const auto& name : load_weights(*model_, checkpoint_map(*args_, reader), reader, may_lack)) {
    environment_.log.info("{}: has no {}, which starts from random values", reader.path().string(), name);
  }
}

TrainResult Trainer::run() {
  const int64_t last = config_.training.steps;
  auto batches = data_.train(config_.training.rows_per_step(), state_.step);
  events_.emit(Event::ready, {.step = state_.step, .model = model_.get()});
  result_.step = state_.step;
  if (state_.step > 0 && validation_due(state_.step) && !run_log_->has_validation(state_.step)) {
    validate_now(state_.step);  // which the stop had cut short
  }
  while (state_.step < last) {
    const int64_t step = state_.step + 1;
    events_.emit(Event::step_begin, {.step = step, .model = model_.get()});
    run_log_->step_begins(step);
    const auto batch = batches->next();  // there is one: finite data set the number of steps
    const double factor = schedule_->factor(state_.step);
    const StepResult done = step_->run(*batch, step, factor);
    state_.step = step;
    state_.num_tokens += done.valid;
    state_.skipped += done.updated ? 0 : 1;
    const auto metrics = run_log_->step_ended(state_, done, config_.optimizer.lr * factor);
    result_ = {.step = step, .loss = done.loss, .validation_loss = result_.validation_loss};
    events_.emit(Event::step_end, {.step = step, .model = model_.get(), .metrics = &metrics});

    if (validation_due(step)) {
      validate_now(step);
    }
    const bool stop = environment_.stop_requested && environment_.stop_requested();
    if (checkpoints_ && (stop || due(config_.checkpoint.interval, step))) {
      save(step);
    }
    if (stop && step < last) {
      result_.stopped = true;
      break;
    }
  }
  finish();
  return result_;
}

void Trainer::validate_now(int64_t step) {
  run_log_->pause();
  const auto stream = data_.validation(config_.validation.local_batch_size);
  const ValidationResult measured =
      validate(*model_, *task_, *stream, config_.validation.steps, environment_.stop_requested);
  if (!measured.complete) {
    return;
  }
  result_.validation_loss = measured.loss;
  const auto metrics = run_log_->validated(step, measured);
  events_.emit(Event::validation_end, {.step = step, .model = model_.get(), .metrics = &metrics});
  run_log_->resume();
}

void Trainer::save(int64_t step) {
  run_log_->pause();
  auto problem = checkpoints_->save(state_);
  if (!problem && config_.checkpoint.async_mode == "disabled") {
    problem = checkpoints_->wait();
  }
  if (problem) {
    environment_.log.error("{}; training goes on, the checkpoint before stands", *problem);
  }
  events_.emit(Event::checkpoint_requested, {.step = step, .model = model_.get()});
  run_log_->resume();
}

void Trainer::finish() {
  if (checkpoints_) {
    if (const auto problem = checkpoints_->wait()) {
      fail_runtime("{}; the checkpoint before stands", *problem);
    }
  }
  run_log_->finish();
  if (result_.stopped) {
    return;
  }
  if (config_.sample.prompt) {
    const auto prompt = tokenizer_->encode(*config_.sample.prompt);
    SamplingOptions sampling{
        .max_new_tokens = config_.sample.max_new_tokens,
        .temperature = config_.sample.temperature,
        .top_k = config_.sample.top_k,
        .top_p = config_.sample.top_p,
        .seed = static_cast<uint64_t>(config_.debug.seed),
        .stop_ids = args_->eos_token_ids(),
        .max_positions = args_->max_position_ids()};
    model_->eval();
    const auto ids = generate(*model_, {prompt.begin(), prompt.end()}, sampling);
    const std::vector<int32_t> narrow(ids.begin(), ids.end());
    run_log_->sample(*config_.sample.prompt, tokenizer_->decode(narrow));
  }
  events_.emit(Event::finished, {.step = state_.step, .model = model_.get()});
}

}  // namespace lehr::train
