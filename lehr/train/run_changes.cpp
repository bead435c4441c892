#include "lehr/train/run_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/optim/parameter_groups.h"

namespace lehr::train {

namespace {
std::vector<double> learning_rates_of(const optim::OptimizerConfig& config) {
  std::vector<double> rates{config.lr};
  for (const optim::ParameterGroupConfig& group : config.param_groups) {
    rates.push_back(optim::learning_rate(config, group));
  }
  return rates;
}
}  // namespace

RunState new_run_state(const TrainConfig& config, uint64_t data_fingerprint) {
  return {
      .seed = config.debug.seed,
      .rows_per_step = config.training.rows_per_step(),
      .seq_len = config.training.seq_len,
      .optimizer = optim::name_of(config.optimizer.name),
      .learning_rates = learning_rates_of(config.optimizer),
      .data_fingerprint = fmt::format("{:016x}", data_fingerprint),
      .packing = config.training.task != TaskKind::causal_lm    ? ""
                 : config.data.packing == data::Packing::concat ? "concat"
                                                                : "whole"};
}

namespace {
// Compares a checkpoint with a run, setting by setting.
class Comparison {
 public:
  Comparison(const ConfiguredRun& now, const std::filesystem::path& folder, std::string otherwise)
      : now_(now), folder_(folder.string()), otherwise_(std::move(otherwise)) {}

  void same(const char* key, int64_t then, int64_t now) const {
    require(then == now, "{}: {}; keep it, or {}", key, difference(then, now), otherwise_);
  }
  void same_unless_allowed(const char* word, const char* key, int64_t then, int64_t now) const {
    require(then == now || allows(word), "{}: {}; {}", key, difference(then, now), advice(word));
  }
  // `now`: the fingerprint with the sequence length of the checkpoint.
  void same_data(const std::string& then, const std::string& now) const {
    require(
        then == now || allows("data"),
        "data: the run of {} read different data than [data] describes now (files, weights, packing, data.seed or the "
        "share held out for validation); {}",
        folder_,
        advice("data"));
  }
  void same_packing(const std::string& then, const std::string& now) const {
    require(
        then == now || allows("data"),
        "data.packing: the run of {} had \"{}\", the config says \"{}\"; {}",
        folder_,
        then,
        now,
        advice("data"));
  }
  bool allows(const char* word) const {
    return std::find(now_.allow_changes.begin(), now_.allow_changes.end(), word) != now_.allow_changes.end();
  }
  std::string advice(const char* word) const {
    return fmt::format("keep it, add \"{}\" to checkpoint.allow_changes, or {}", word, otherwise_);
  }

 private:
  std::string difference(int64_t then, int64_t now) const {
    return fmt::format("the run of {} had {}, the config says {}", folder_, then, now);
  }

  const ConfiguredRun& now_;
  std::string folder_;
  std::string otherwise_;
};

std::string start_anew(const std::filesystem::path& folder) {
  return fmt::format(
      "start a new run in another job.dump_folder with checkpoint.initial_load_path = \"{}\"", folder.string());
}
}  // namespace

int64_t continued_data_position(
    const RunState& then, const ConfiguredRun& now, const std::filesystem::path& folder, const std::string& otherwise) {
  const Comparison comparison(now, folder, otherwise);
  comparison.same("debug.seed", then.seed, now.start.seed);
  comparison.same_unless_allowed(
      "batch_size", "training.global_batch_size", then.rows_per_step, now.start.rows_per_step);
  comparison.same_unless_allowed("seq_len", "training.seq_len", then.seq_len, now.start.seq_len);
  const bool same_length = then.seq_len == now.start.seq_len;
  if (!then.data_fingerprint.empty() &&
      !comparison.allows("data")) {  // else it need not be opened with the other length
    comparison.same_data(
        then.data_fingerprint, (same_length ? now.start : now.with_seq_len(then.seq_len)).data_fingerprint);
  }
  if (!then.packing.empty()) {
    comparison.same_packing(then.packing, now.start.packing);
  }
  if (same_length || !now.reads_tokens) {
    return then.sequences_read;
  }
  return (then.sequences_read * then.seq_len + now.start.seq_len - 1) / now.start.seq_len;
}

RunState resumed_state(const RunState& then, const ConfiguredRun& now, const std::filesystem::path& folder) {
  const std::string otherwise = start_anew(folder);
  RunState state = now.start;
  state.step = then.step;
  state.num_tokens = then.num_tokens;
  state.skipped = then.skipped;
  state.schedule_ahead = then.schedule_ahead;
  state.validation_loss = then.validation_loss;
  state.recent_losses = then.recent_losses;
  state.sequences_read = continued_data_position(then, now, folder, otherwise);
  require(
      then.optimizer.empty() || then.optimizer == state.optimizer,
      "optimizer.name: the run so far trained with {} ({}), the config says {}; keep it, or {}",
      then.optimizer,
      folder.string(),
      state.optimizer,
      otherwise);
  return state;
}

void check_schedule_steps(
    const RunState& then, const RunState& state, const ConfiguredRun& now, const std::filesystem::path& folder) {
  const bool other_data = then.rows_per_step != state.rows_per_step || then.seq_len != state.seq_len ||
                          then.data_fingerprint != state.data_fingerprint;
  if (then.schedule_steps == 0 || then.schedule_steps == state.schedule_steps || (now.ends_with_data && other_data)) {
    return;
  }
  const Comparison comparison(now, folder, start_anew(folder));
  require(
      comparison.allows("steps"),
      "{}: the learning-rate schedule of the run of {} spans {} steps, with this config {}; {}{}",
      now.own_schedule ? "lr_scheduler.total_steps" : "training.steps",
      folder.string(),
      then.schedule_steps,
      state.schedule_steps,
      comparison.advice("steps"),
      now.own_schedule ? "" : fmt::format(", or set lr_scheduler.total_steps = {}", then.schedule_steps));
}

std::vector<std::string> describe_changes(const RunState& then, const RunState& state, const ConfiguredRun& now) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* what, int64_t before, int64_t after) {
    if (before != after) {
      changes.push_back(fmt::format("{}: {} so far, {} from here on", what, before, after));
    }
  };
  compare("sequences per step", then.rows_per_step, state.rows_per_step);
  compare("tokens per sequence", then.seq_len, state.seq_len);
  if (!then.packing.empty() && then.packing != state.packing) {
    changes.push_back(fmt::format("data.packing: {} so far, {} from here on", then.packing, state.packing));
  }
  if (then.schedule_steps != 0) {
    compare("steps of the learning-rate schedule", then.schedule_steps, state.schedule_steps);
  }
  if (!then.data_fingerprint.empty() && then.data_fingerprint != state.data_fingerprint) {
    if (then.seq_len == state.seq_len) {
      changes.emplace_back("other data from here on");
    } else if (Comparison(now, "", "").allows("data")) {
      changes.emplace_back("the data was not compared with that so far");
    }
  }
  if (!changes.empty()) {
    changes.push_back(fmt::format("the data continues at its sequence {}", state.sequences_read));
  }
  if (!then.learning_rates.empty() && then.learning_rates != state.learning_rates) {
    changes.push_back(fmt::format(
        "optimizer.lr{}: {} so far, {} from here on",
        std::max(then.learning_rates.size(), state.learning_rates.size()) > 1 ? " and those of its param_groups" : "",
        fmt::join(then.learning_rates, ", "),
        fmt::join(state.learning_rates, ", ")));
  }
  return changes;
}

void require_same_shape(
    const std::filesystem::path& file,
    const descriptor::ModelFamily& family,
    const Node& now,
    const std::string& advice) {
  const Node stored = parse_json_file(file);
  const std::string model_type = stored.find("model_type") != nullptr ? to_json(stored.at("model_type")) : "none";
  require(
      descriptor::is_of_family(stored, family),
      "{}: the run so far trained another model: model_type = {}, now {}; {}",
      file.string(),
      model_type,
      to_json(now.at("model_type")),
      advice);
  const auto args = family.from_hf_config(stored);
  args->keep_mtp_modules(stored.find(descriptor::kMtpModulesKey) != nullptr);  // those that the checkpoint has
  const Node then = args->to_hf_config(descriptor::dtype_of(stored, ""));
  std::vector<std::string> differences;
  const auto differ = [&](const std::string& key, const Node* before, const Node* after) {
    const std::string then_value = before != nullptr ? to_json(*before) : "none";
    const std::string now_value = after != nullptr ? to_json(*after) : "none";
    if (then_value != now_value && then_value.size() + now_value.size() > 200) {
      differences.push_back(fmt::format("{} differs", key));
    } else if (then_value != now_value) {
      const char* cause = key == descriptor::kMtpModulesKey ? " (training.mtp_loss_coef)" : "";
      differences.push_back(fmt::format("{} = {}, now {}{}", key, then_value, now_value, cause));
    }
  };
  constexpr const char* kLayers = "block_configs";  // only a model whose layers differ has it
  differ(kLayers, then.find(kLayers), now.find(kLayers));
  for (const auto& [key, value] : now.entries()) {
    // Checkpoints of models without padding may lack its key, which families read as a default of their own.
    const bool may_lack = key == "pad_token_id" && stored.find(key) == nullptr;
    if (const Node* before = then.find(key); before != nullptr && key != kLayers && !may_lack) {
      differ(key, before, &value);
    }
  }
  require(
      differences.empty(),
      "{}: the run so far trained another model: {}; {}",
      file.string(),
      fmt::join(differences, "; "),
      advice);
}

}  // namespace lehr::train
