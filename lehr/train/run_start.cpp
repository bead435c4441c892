#include "lehr/train/run_start.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/config/toml.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/weights.h"
#include "lehr/train/local_checkpoints.h"
#include "lehr/train/run_changes.h"

namespace lehr::train {

namespace {
// Sets the start, cuts training.steps to the data that is left, and builds the schedule.
void start_at(Run& run, const RunState& state) {
  run.state = state;
  int64_t& steps = run.config.training.steps;
  if (const auto rows = run.data.num_train_rows) {
    const int64_t left = std::max<int64_t>(*rows - state.sequences_read, 0) / run.config.training.rows_per_step();
    steps = std::min(steps, state.step + left);
  }
  TrainConfig shifted = run.config;
  shifted.training.steps = std::max<int64_t>(steps + state.schedule_ahead, 1);
  run.state.schedule_steps = run.config.lr_scheduler.total_steps.value_or(shifted.training.steps);
  run.lr_factor = [factor = run.spec.build.lr_schedule(shifted), ahead = state.schedule_ahead](int64_t step) {
    return factor(step + ahead);
  };
}

void start_adapters(Run& run) {
  peft::reset_adapters(*run.model, {.seed = static_cast<uint64_t>(run.config.debug.seed)});
  if (!run.config.peft.init_from) {
    return;
  }
  const std::filesystem::path folder = *run.config.peft.init_from;
  if (!peft::is_adapter_folder(folder)) {
    fail(
        "peft.init_from: {} holds no adapter (adapter_config.json){}",
        folder.string(),
        state::meant_checkpoint(folder));
  }
  const nn::Model& named = run.named_model();
  const auto base_names = peft::stored_names(folder, *run.args);
  peft::require_same_scaling(peft::read_adapter_config(folder), named, base_names);
  peft::require_one_table(folder, named, base_names);
  pretrained::load_weights(
      *run.model,
      peft::to_map(peft::adapter_stored_names(named, base_names, peft::tuned_tensors(named, base_names))),
      state::WeightReader(folder, peft::kAdapterStem));
}

// Only while `run.state` is that of a new run. The token files exist by now, so no rank has to go first.
ConfiguredRun configured(const Run& run) {
  return {
      .start = run.state,
      .allow_changes = run.config.checkpoint.allow_changes,
      .reads_tokens = !reads_whole_texts(run.config.training.task),
      .own_schedule = run.config.lr_scheduler.total_steps.has_value(),
      .with_seq_len = [&run](int64_t seq_len) {
        TrainConfig other = run.config;
        other.training.seq_len = seq_len;
        const auto ignore = [](const std::string&) {};
        const RunData data = run.spec.build.data(other, *run.tokenizer, ModelIds::of(*run.args), ignore);
        return new_run_state(other, data.fingerprint);
      }};
}

// Returns the differences from the run so far.
std::vector<std::string> start_from(Run& run, const std::filesystem::path& checkpoint) {
  const int64_t wanted = run.config.training.steps;
  ConfiguredRun now = configured(run);
  const auto [then, state] = run.checkpoints->check(checkpoint, now);
  start_at(run, state);
  now.ends_with_data = run.config.training.steps < wanted;
  check_schedule_steps(then, run.state, now, checkpoint);
  return describe_changes(then, run.state, now);
}

bool holds_checkpoints(const std::filesystem::path& root) {
  return !state::CheckpointStore(root).list().empty() || std::filesystem::exists(LocalCheckpoints::pointer_in(root));
}

// Returns the value of checkpoint.folder of the run that was in `dump_folder` before; empty: there was none.
std::string checkpoint_folder_before(const std::filesystem::path& dump_folder) {
  const auto saved = dump_folder / "config.toml";
  if (!std::filesystem::exists(saved)) {
    return "";
  }
  const Node config = parse_toml(read_file(saved), saved.string());
  const Node* section = config.find("checkpoint");
  const Node* folder = section == nullptr ? nullptr : section->find("folder");
  return folder == nullptr ? CheckpointConfig().folder : folder->as_string();
}

// A run whose checkpoints are not found would begin anew, and overwrite the logs of an earlier one.
void require_finds_earlier_run(const TrainConfig& config) {
  const std::filesystem::path dump_folder = config.job.dump_folder;
  const auto root = dump_folder / config.checkpoint.folder;
  const char* const loss = "which this run would not resume, and whose logs it would overwrite";
  if (holds_checkpoints(root)) {
    require(
        config.checkpoint.enable,
        "checkpoint.enable: {} holds checkpoints of an earlier run, {}; set it to true, or choose another "
        "job.dump_folder",
        root.string(),
        loss);
    return;
  }
  const std::string before = checkpoint_folder_before(dump_folder);
  require(
      before.empty() || !holds_checkpoints(dump_folder / before),
      "checkpoint.folder: {} holds checkpoints of an earlier run, {}; set it to \"{}\", or choose another "
      "job.dump_folder",
      (dump_folder / before).string(),
      loss,
      before);
}

// Returns the folder of the model that the run continues; empty: none.
std::filesystem::path source_of(const TrainConfig& config, const std::optional<std::filesystem::path>& checkpoint) {
  if (checkpoint) {
    return *checkpoint;
  }
  return config.model.hf_assets_path.empty() ? config.checkpoint.initial_load_path.value_or("")
                                             : config.model.hf_assets_path;
}

void resume(Run& run, const std::filesystem::path& checkpoint) {
  run.checkpoints->load(checkpoint);
  run.logger.info(
      "resuming from {}: {} of {} steps done", checkpoint.string(), run.state.step, run.config.training.steps);
  const int64_t wanted = run.config.checkpoint.load_step;
  if (wanted >= 0 && wanted == run.state.step) {
    for (const int64_t step : run.checkpoints->went_back_to(wanted)) {
      run.logger.warn("the later checkpoint of step {} is set aside, as step-{}.aside", step, step);
    }
  } else if (wanted >= 0) {
    run.logger.warn(
        "checkpoint.load_step: the run went back to step {} before, and goes on from step {}; remove {} to go back again",
        wanted,
        run.state.step,
        run.checkpoints->went_back_file(wanted).string());
  }
}
}  // namespace

namespace {
void warn_of_other_tokenizer(const Run& run) {
  const TrainConfig& config = run.config;
  const std::string folder = value_of(config.checkpoint.initial_load_path, "checkpoint.initial_load_path");
  const bool all = config.checkpoint.exclude_from_loading.empty();  // else a new table may be wanted
  if (!run.ranks.is_main() || !all) {
    return;
  }
  if (const auto warning = other_tokenizer_warning(config, *run.tokenizer, folder); !warning.empty()) {
    run.logger.warn("{}", warning);
  }
}

void warn_of_other_settings(const Run& run) {
  const std::string folder = value_of(run.config.checkpoint.initial_load_path, "checkpoint.initial_load_path");
  if (!run.ranks.is_main()) {
    return;
  }
  if (const auto warning = other_settings_warning(run.spec.family, *run.args, folder); !warning.empty()) {
    run.logger.warn("{}", warning);
  }
}

void warn_of_short_schedule(const Run& run) {
  const int64_t steps = run.config.training.steps, spans = run.state.schedule_steps;
  const int64_t end = spans - run.state.schedule_ahead;
  if (run.ranks.is_main() && run.config.lr_scheduler.total_steps && end < steps && run.state.step < steps) {
    run.logger.warn(
        "lr_scheduler.total_steps = {}: the schedule ends at step {}, before training.steps = {}, and later steps keep "
        "its last learning rate, {:.3g}; raise lr_scheduler.total_steps, or lower training.steps",
        spans,
        end,
        steps,
        run.config.optimizer.lr * run.lr_factor(steps - 1));
  }
}
}  // namespace

RunStart find_start(Run& run) {
  require_finds_earlier_run(run.config);
  RunStart start{.steps = run.config.training.steps};
  if (run.config.checkpoint.enable) {
    run.checkpoints = std::make_unique<RunCheckpoints>(
        run.config,
        run.spec.family,
        *run.args,
        *run.tokenizer,
        *run.model,
        *run.optimizer,
        run.ranks.context(),
        run.whole.get());
    start.checkpoint = run.checkpoints->find();
    if (const auto source = source_of(run.config, start.checkpoint); !source.empty()) {
      run.checkpoints->continue_from(source);
    }
    for (const auto& warning : run.checkpoints->take_warnings()) {
      run.logger.warn("{}", warning);
    }
  }
  const ConfiguredRun now = configured(run);
  RunState state = run.state;
  if (run.config.checkpoint.initial_load_path && (!start.checkpoint || run.config.peft.has_adapters())) {
    start.initial_load = std::make_unique<InitialLoad>(run.config, *run.args);
    state = start.initial_load->check(*run.model, now);
    if (!start.checkpoint) {
      warn_of_other_tokenizer(run);
      warn_of_other_settings(run);
    }
  }
  if (run.config.peft.has_adapters()) {
    run.state.base_fingerprint = state.base_fingerprint = pretrained::weights_fingerprint(
        state::WeightReader(value_of(run.config.checkpoint.initial_load_path, "checkpoint.initial_load_path")));
  }
  if (start.checkpoint) {
    start.changes = start_from(run, *start.checkpoint);
  } else {
    start_at(run, state);
    if (start.initial_load) {
      start.changes = start.initial_load->changes(run.state, now);
    }
  }
  warn_of_short_schedule(run);
  return start;
}

void allocate_parameters(Run& run) {
  const bool offload = run.config.parallelism.fsdp_cpu_offload;
  if (run.config.peft.has_adapters()) {
    // Base weights are in no checkpoint, so the compute dtype is enough for them.
    peft::materialize_frozen(
        *run.model, offload ? at::Device(at::kCPU) : run.device, compute_type(run.config.training));
  }
  if (offload && run.device.is_cpu() && run.ranks.is_main()) {
    run.logger.warn(
        "parallelism.fsdp_cpu_offload: the run computes on the CPU, so this saves no memory and only adds copies");
  }
  if (offload) {
    shard::materialize_offloaded(*run.model, run.device, parameter_type(run.config.training));
    return;
  }
  nn::materialize(*run.model, run.device, parameter_type(run.config.training));
}

void load_or_initialize(Run& run, const RunStart& start) {
  std::vector<optim::NamedParameter> trained;
  for (const auto& [name, parameter] : nn::named_parameters(*run.model)) {
    if (parameter->trainable()) {
      trained.push_back({.name = name, .value = parameter->value(), .placement = placement_of(*parameter)});
    }
  }
  run.optimizer->allocate(trained);
  if (run.config.peft.has_adapters()) {
    start.initial_load->load(*run.model, *run.optimizer, run.ranks.context(), run.logger);
  }
  if (start.checkpoint) {
    resume(run, *start.checkpoint);
  } else if (run.config.peft.has_adapters()) {
    start_adapters(run);
  } else if (start.initial_load) {
    start.initial_load->load(*run.model, *run.optimizer, run.ranks.context(), run.logger);
    if (!run.config.checkpoint.initial_load_model_only) {
      run.logger.info(
          "continuing from {}: {} of {} steps done",
          value_of(run.config.checkpoint.initial_load_path, "checkpoint.initial_load_path"),
          run.state.step,
          run.config.training.steps);
    }
  } else {
    run.model->reset_parameters({.seed = static_cast<uint64_t>(run.config.debug.seed)});
  }
  for (const std::string& change : start.changes) {
    run.logger.info("changed: {}", change);
  }
  if (const auto rows = run.data.num_train_rows; rows && run.config.training.steps < start.steps) {
    const int64_t too_few =
        std::max<int64_t>(*rows - run.state.sequences_read, 0) % run.config.training.rows_per_step();
    run.logger.info(
        "the data is used up after {} of the {} steps (training.steps), and data.repeat is false: the run ends there{}",
        run.config.training.steps,
        start.steps,
        too_few > 0 ? fmt::format(", without the last {} of {} sequences, which do not fill a step", too_few, *rows)
                    : "");
  }
}

}  // namespace lehr::train
