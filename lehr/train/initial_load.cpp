#include "lehr/train/initial_load.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/open_file.h"
#include "lehr/base/value_of.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/train/rank_share.h"
#include "lehr/train/run_state.h"
#include "lehr/train/store_coordinator.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

// Checked before the files are opened, whose error would be less specific.
fs::path require_model(const std::string& folder) {
  require(
      !peft::is_adapter_folder(folder),
      "checkpoint.initial_load_path: {} holds an adapter, not a model; merge it with its base by `lehr merge`, or name "
      "the base here and the adapter in peft.init_from",
      folder);
  return folder;
}

state::WeightReader open_weights(const fs::path& folder) {
  try {
    return state::WeightReader(folder);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("checkpoint.initial_load_path: {}", error.what()));
  }
}

pretrained::LoadRules rules_of(
    const TrainConfig& config, const descriptor::ModelArgs& args, const state::WeightReader& reader) {
  pretrained::LoadRules rules{
      .may_lack = pretrained::lacked_mtp_modules(pretrained::checkpoint_map(args, reader), reader),
      .may_have = pretrained::heads_beside(args),
      .exclude = config.checkpoint.excluded_weights(),
      .strict = config.checkpoint.initial_load_strict};
  if (descriptor::is_classifier(args.head())) {  // may start from a language model
    rules.may_lack.insert("score.weight");
    rules.may_lack.insert("score.bias");
  }
  return rules;
}

// Prefixes errors about the user's patterns with their key.
template <class Body>
auto named(const pretrained::LoadRules& rules, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    for (const std::string& pattern : rules.exclude) {
      if (std::string_view(error.what()).starts_with("\"" + pattern + "\"")) {
        fail("checkpoint.exclude_from_loading: {}", error.what());
      }
    }
    throw;
  }
}

RunState read_state(const fs::path& folder) {
  const fs::path file = path_beneath(folder, kRunStateFile);
  require(
      fs::exists(file) && state::WeightReader::exists(folder, "optimizer"),
      "checkpoint.initial_load_path: {} is not a checkpoint of a run (trainer.json, optimizer.safetensors), which "
      "checkpoint.initial_load_model_only = false requires",
      folder.string());
  return read_run_state(folder);
}

// What can be done instead of taking over a part of the other run.
std::string without(const char* part) {
  return fmt::format("add \"{}\" to checkpoint.exclude_from_loading to start without it", part);
}

void tell(Logger& log, const fs::path& folder, const char* what, const std::vector<std::string>& names) {
  if (!names.empty()) {
    log.info("{}: {}: {}", folder.string(), what, fmt::join(names, ", "));
  }
}
}  // namespace

InitialLoad::InitialLoad(const TrainConfig& config, const descriptor::ModelArgs& args)
    : config_(config),
      args_(args),
      folder_(require_model(value_of(config.checkpoint.initial_load_path, "checkpoint.initial_load_path"))),
      reader_(open_weights(folder_)),
      rules_(rules_of(config, args, reader_)) {
  if (!config.checkpoint.initial_load_model_only) {
    then_ = read_state(folder_);
  }
}

const RunState* InitialLoad::taken(const std::string& part) const {
  return then_ && !config_.checkpoint.excludes(part) ? &*then_ : nullptr;
}

// The position of parts that are not taken over starts at 0, so it may differ from the other run's.
RunState InitialLoad::joined(const ConfiguredRun& now) const {
  RunState state = now.start;
  if (const RunState* const then = taken("train_state")) {
    state.step = then->step;
    state.num_tokens = then->num_tokens;
    state.skipped = then->skipped;
    state.recent_losses = then->recent_losses;
  }
  if (const RunState* const then = taken("dataloader")) {
    state.sequences_read = continued_data_position(*then, now, folder_, without("dataloader"));
  }
  const RunState* const schedule = taken("lr_scheduler");
  state.schedule_ahead = (schedule != nullptr ? schedule->step + schedule->schedule_ahead : 0) - state.step;
  return state;
}

RunState InitialLoad::check(const nn::Model& model, const ConfiguredRun& now) const {
  const state::StateMap map = pretrained::checkpoint_map(args_, reader_);
  named(rules_, [&] {
    pretrained::check_checkpoint(
        map, pretrained::parameter_specs(model), reader_, pretrained::with_state(rules_, model, map));
  });
  if (!then_) {
    return now.start;  // only weights are loaded
  }
  const RunState& theirs = *then_;
  if (taken("optimizer") != nullptr) {
    require(
        theirs.optimizer.empty() || theirs.optimizer == now.start.optimizer,
        "optimizer.name: {} was trained with {}, the config says {}; {}",
        folder_.string(),
        theirs.optimizer,
        now.start.optimizer,
        without("optimizer"));
  }
  if (taken("train_state") != nullptr) {
    require(
        theirs.step <= config_.training.steps,
        "training.steps: {} steps are complete in {}, which is more than the {} of this run; {}",
        theirs.step,
        folder_.string(),
        config_.training.steps,
        without("train_state"));
  }
  return joined(now);
}

std::vector<std::string> InitialLoad::changes(const RunState& state, const ConfiguredRun& now) const {
  const RunState* const then = taken("dataloader");
  return then != nullptr ? describe_changes(*then, state, now) : std::vector<std::string>();
}

void InitialLoad::load(
    nn::Model& model, optim::Optimizer& optimizer, mesh::DistributedContext* mesh, Logger& log) const {
  const auto seed = static_cast<uint64_t>(config_.debug.seed);
  const pretrained::StartedWeights weights =
      named(rules_, [&] { return pretrained::load_or_start_weights(model, args_, reader_, rules_, seed); });
  tell(log, folder_, "missing, initialized as in a new run", weights.difference.lacked);
  tell(log, folder_, "skipped by checkpoint.exclude_from_loading", weights.difference.excluded);
  tell(log, folder_, "unexpected, skipped", weights.difference.unexpected);
  if (taken("optimizer") != nullptr) {
    const auto coordinator = make_coordinator(mesh, "initial load");
    auto all = share_of_optimizer(optimizer, model, mesh).all;
    if (mesh != nullptr) {
      all = of_all_stages(all, {}, *mesh, *coordinator, "optimizer");
    }
    load_optimizer(optimizer, model, all, state::WeightReader(folder_, "optimizer"), weights.fresh, rules_.strict);
  }
}

}  // namespace lehr::train
