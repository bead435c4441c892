#include "lehr/train/run_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/value_of.h"
#include "lehr/config/config.h"
#include "lehr/config/json.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/adapter_names.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/weights.h"
#include "lehr/train/best_checkpoint.h"
#include "lehr/train/chat.h"
#include "lehr/train/find_checkpoint.h"
#include "lehr/train/local_checkpoints.h"
#include "lehr/train/non_finite.h"
#include "lehr/train/precision.h"
#include "lehr/train/rank_share.h"
#include "lehr/train/run_changes.h"
#include "lehr/train/store_coordinator.h"

namespace lehr::train {

namespace {

std::filesystem::path checkpoint_root(const TrainConfig& config) {
  return std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder;
}

// The generation_config.json of a model that has none.
Node new_generation_config() {
  Node node = Node::make_table();
  node.set("do_sample", Node(true));
  return node;
}

Node table_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    return {};
  }
  Node node = parse_json_file(file);
  return node.is_table() ? node : Node();
}
}  // namespace

at::ScalarType RunCheckpoints::weights_type() const {
  for (const auto& [name, parameter] : nn::named_parameters(model_)) {
    if (parameter->trainable() && !parameter->value().is_meta()) {
      return parameter->value().scalar_type();  // frozen ones may be narrower
    }
  }
  return parameter_type(config_.training);
}

std::string RunCheckpoints::config_file() const {
  return config_.peft.has_adapters() ? peft::kModelConfigFile : "config.json";
}

RunCheckpoints::RunCheckpoints(
    const TrainConfig& config,
    const descriptor::ModelFamily& family,
    const descriptor::ModelArgs& args,
    const data::Tokenizer& tokenizer,
    nn::Model& model,
    optim::Optimizer& optimizer,
    mesh::DistributedContext* mesh,
    const nn::Model* whole)
    : config_(config),
      family_(family),
      args_(args),
      tokenizer_files_(data::tokenizer_file_contents(tokenizer)),
      model_(model),
      by_names_(whole != nullptr ? *whole : model),
      optimizer_(optimizer),
      stop_ids_(args.eos_token_ids()),
      base_names_(config.peft.has_adapters() ? peft::stored_names(args) : std::vector<peft::StoredName>{}),
      map_(
          config.peft.has_adapters() ? peft::to_map(peft::adapter_stored_names(
                                           by_names_, base_names_, peft::tuned_tensors(by_names_, base_names_)))
                                     : pretrained::written_map(args, descriptor::ExpertLayout::per_expert)),
      mesh_(mesh),
      coordinator_(make_coordinator(mesh, "checkpoints")),
      store_(std::make_unique<state::CheckpointStore>(checkpoint_root(config))),
      writer_(std::make_unique<state::AsyncCheckpointer>(
          *store_,
          config.checkpoint.keep_latest_k,
          coordinator_,
          device_queues,
          state::AsyncCheckpointer::kPinnedBytes,
          config.checkpoint.keep_best ? write_and_keep_best(*store_, config.checkpoint.keep_latest_k, coordinator_)
                                      : state::WriteContents())),
      local_(std::make_unique<LocalCheckpoints>(
          config.checkpoint,
          checkpoint_root(config),
          make_coordinator(mesh, "local checkpoints"),
          mesh != nullptr ? &mesh->transport() : nullptr)) {
  if (const auto left = coordinator_->from_main("recover", [this] { return store_->recover(); }); !left.empty()) {
    warnings_.push_back(fmt::format("what a save left behind stays: {}", left));
  }
  if (config.training.task == TaskKind::sft) {
    // A base model may not list the token that ends a turn as a stop token.
    stop_ids_ = stop_ids_of(tokenizer, chat_template_of(config), stop_ids_);
  }
  if (const std::string& own = chat_template_file(config); !own.empty()) {
    std::erase_if(tokenizer_files_, [](const auto& file) { return file.first == "chat_template.jinja"; });
    tokenizer_files_.emplace_back("chat_template.jinja", data::read_whole_file(own));
  }
}

RunCheckpoints::~RunCheckpoints() = default;

std::optional<std::filesystem::path> RunCheckpoints::find() {
  const int64_t wanted = std::stoll(coordinator_->from_main("load_step", [this] {
    const int64_t step = config_.checkpoint.load_step;
    return std::to_string(step >= 0 && std::filesystem::exists(went_back_file(step)) ? -1 : step);
  }));
  FoundCheckpoint found = find_checkpoint(
      *store_,
      wanted < 0 ? std::nullopt : std::optional(wanted),
      config_.checkpoint.verify,
      *coordinator_,
      wanted < 0 ? local_->newest(*store_) : std::nullopt,
      local_->writer_to(*store_, config_.checkpoint.verify));
  coordinator_->from_main("best", [this] {  // the best so far may be a damaged one, which is set aside now
    link_best(*store_, config_.checkpoint.keep_best);
    return std::string();
  });
  from_local_ = found.is_local;
  warnings_.insert(warnings_.end(), found.warnings.begin(), found.warnings.end());
  if (wanted < 0) {
    const auto more = local_->warnings(newest_on_disk());
    warnings_.insert(warnings_.end(), more.begin(), more.end());
  }
  return found.folder;
}

int64_t RunCheckpoints::newest_on_disk() {
  return newest_step(*store_, "newest", *coordinator_);
}

RunCheckpoints::Continuation RunCheckpoints::check(const std::filesystem::path& folder, const ConfiguredRun& now) {
  Continuation found;
  coordinator_->all_succeed("check", [&] { found = check_here(folder, now); });
  return found;
}

RunCheckpoints::Continuation RunCheckpoints::check_here(
    const std::filesystem::path& folder, const ConfiguredRun& now) const {
  const RunState then = read_run_state(folder);
  RunState state = resumed_state(then, now, folder);
  require_same_peft(folder, then, now.start);
  require_same_shape(
      folder / config_file(),
      family_,
      args_.to_hf_config(state::torch_name(weights_type())),
      "keep it, or start a new run in another job.dump_folder");
  require(
      state.step <= config_.training.steps,
      "training.steps: {} steps are complete in {}, which is more than the {} of this run",
      state.step,
      folder.string(),
      config_.training.steps);
  return {then, state};
}

void RunCheckpoints::load(const std::filesystem::path& folder) {
  // Called before anything that can fail on one rank alone, because all ranks must call it.
  const auto entries = all_of("optimizer", share_of_optimizer(optimizer_, model_, mesh_).all);
  coordinator_->all_succeed("load", [&] {
    const std::string stem = config_.peft.has_adapters() ? peft::kAdapterStem : "model";
    const state::WeightReader optimizer(folder, "optimizer", state::Reading::once);
    require_same_trained(optimizer, entries);
    pretrained::load_weights(model_, map_, state::WeightReader(folder, stem, state::Reading::once));
    load_optimizer(optimizer_, model_, entries, optimizer);
  });
}

void RunCheckpoints::require_same_peft(
    const std::filesystem::path& folder, const RunState& then, const RunState& now) const {
  const bool adapters = peft::is_adapter_folder(folder);
  require(
      adapters == config_.peft.has_adapters(),
      "peft.method: the run so far trained {} ({}); keep it, or choose another job.dump_folder",
      adapters ? "adapters" : "without adapters",
      folder.string());
  if (adapters) {
    peft::require_same_scaling(peft::read_adapter_config(folder), by_names_, base_names_);
    require(
        then.base_fingerprint == now.base_fingerprint,
        "checkpoint.initial_load_path: {} holds other weights than those that the adapters in {} were trained on",
        value_of(config_.checkpoint.initial_load_path, "checkpoint.initial_load_path"),
        folder.string());
  }
}

void RunCheckpoints::continue_from(const std::filesystem::path& folder) {
  coordinator_->from_main("continue_from", [&] {
    const bool is_folder = std::filesystem::is_directory(folder);  // model.hf_assets_path may be the file itself
    const char* name = is_folder && peft::is_adapter_folder(folder) ? peft::kModelConfigFile : "config.json";
    source_ = descriptor::text_config_of(table_of(is_folder ? folder / name : folder));
    source_generation_ = table_of((is_folder ? folder : folder.parent_path()) / "generation_config.json");
    return std::string();
  });
}

std::filesystem::path RunCheckpoints::went_back_file(int64_t step) const {
  return store_->root() / fmt::format(".went-back-to-step-{}", step);
}

std::vector<int64_t> RunCheckpoints::went_back_to(int64_t step) {
  local_->forget();
  const std::string moved = coordinator_->from_main("went back", [&] {
    std::vector<std::string> steps;
    for (const int64_t later : store_->set_aside_after(step)) {
      steps.push_back(std::to_string(later));
    }
    link_best(*store_, config_.checkpoint.keep_best);
    write_file_atomically(went_back_file(step), "");
    return state::pack_texts(steps);
  });
  std::vector<int64_t> steps;
  for (const std::string& text : state::unpack_texts(moved)) {
    steps.push_back(std::stoll(text));
  }
  return steps;
}

// The tensors of all stages, which are constant during a run.
const std::vector<state::TensorInfo>& RunCheckpoints::all_of(
    const std::string& stem, const std::vector<state::TensorInfo>& mine) {
  const auto [found, is_new] = all_.try_emplace(stem);
  if (is_new) {
    found->second = mesh_ == nullptr ? mine : of_all_stages(mine, stored_order(map_), *mesh_, *coordinator_, stem);
  }
  return found->second;
}

void RunCheckpoints::require_finite(int64_t step) {
  coordinator_->decide("finite", non_finite_parameter(model_), [&](const std::vector<std::string>& names) {
    const auto name = std::find_if(names.begin(), names.end(), [](const auto& text) { return !text.empty(); });
    if (name != names.end()) {
      fail_runtime(
          "step {}: {} is not finite any more, so nothing was saved and the run ends; the previous checkpoint is kept. "
          "Resume from it with a lower optimizer.lr",
          step,
          *name);
    }
    return std::string();
  });
}

state::CheckpointContents RunCheckpoints::contents_of(const RunState& state) {
  const int64_t max_shard_bytes = config_.checkpoint.max_shard_size_mb * 1000 * 1000;
  state::CheckpointContents contents{.step = state.step, .weights = {}};
  const bool adapters = config_.peft.has_adapters();  // PEFT has no sharded files
  auto weights = share_of_parameters(model_, map_, mesh_);
  contents.weights.push_back(
      {.stem = adapters ? peft::kAdapterStem : "model",
       .tensors = {},
       .max_shard_bytes = adapters ? std::numeric_limits<int64_t>::max() : max_shard_bytes,
       .all = all_of("model", weights.all),
       .parts = std::move(weights.parts)});
  auto moments = share_of_optimizer(optimizer_, model_, mesh_);
  contents.weights.push_back(
      {.stem = "optimizer",
       .tensors = {},
       .max_shard_bytes = max_shard_bytes,
       .all = all_of("optimizer", moments.all),
       .parts = std::move(moments.parts)});
  if (coordinator_->is_main()) {
    add_texts(contents, state);
  }
  return contents;
}

std::optional<std::string> RunCheckpoints::save(const RunState& state) {
  require_finite(state.step);
  const state::CheckpointContents contents = contents_of(state);
  const auto earlier = wait();  // save() would wait too, but the return value must not depend on timing
  writer_->save(contents);
  return earlier;
}

std::optional<std::string> RunCheckpoints::save_local(const RunState& state) {
  require_finite(state.step);
  const state::CheckpointContents contents = contents_of(state);
  local_->wait();
  const auto earlier = local_->take_failure();
  local_->save(contents);
  return earlier;
}

std::optional<std::string> RunCheckpoints::open_local(bool resumes) {
  const bool wanted = config_.checkpoint.local_interval > 0;  // most runs want none, and need not plan their files
  return local_->open(
      resumes, from_local_, wanted ? state::num_bytes(contents_of({})) : 0, wanted ? copied_bytes() : 0);
}

void RunCheckpoints::wait_copied() {
  writer_->wait_copied();
  local_->wait();
}

int64_t RunCheckpoints::copied_bytes() const {
  int64_t bytes = 0;
  for (const RankShare& share :
       {share_of_parameters(model_, map_, mesh_), share_of_optimizer(optimizer_, model_, mesh_)}) {
    for (const state::TensorPart& part : share.parts) {
      bytes += static_cast<int64_t>(part.tensor.nbytes());
    }
  }
  return bytes;
}

void RunCheckpoints::add_texts(state::CheckpointContents& contents, const RunState& state) const {
  contents.texts = tokenizer_files_;
  if (config_.peft.has_adapters()) {
    const std::string& given = value_of(config_.checkpoint.initial_load_path, "checkpoint.initial_load_path");
    const auto base = std::filesystem::absolute(given).lexically_normal().string();
    const Node adapter = peft::adapter_config(by_names_, base_names_, args_.head(), base);
    contents.texts.emplace_back("adapter_config.json", to_json(adapter, true) + "\n");
  }
  const Node config = descriptor::updated_config(source_, family_, args_, state::torch_name(weights_type()));
  contents.texts.emplace_back(config_file(), to_json(config, true) + "\n");
  if (args_.head() == descriptor::Head::causal_lm) {
    const Node generation = descriptor::updated_generation_config(
        source_generation_.is_null() ? new_generation_config() : source_generation_, stop_ids_, args_.pad_token_id());
    contents.texts.emplace_back("generation_config.json", to_json(generation, true) + "\n");
  }
  contents.texts.emplace_back(kRunStateFile, to_json(to_node(state), true) + "\n");
  contents.checked_texts = {kRunStateFile};
}

std::optional<std::string> RunCheckpoints::wait() {
  writer_->wait();
  return failure();
}

std::optional<std::string> RunCheckpoints::failure() {
  std::optional<std::string> message;
  while (const auto result = writer_->poll()) {
    write_seconds_ = result->write_seconds;
    if (!result->ok()) {
      message = fmt::format("the checkpoint of step {} was not saved: {}", result->step, result->error);
      continue;
    }
    if (!result->untidy.empty()) {
      warnings_.push_back(
          fmt::format("the checkpoint of step {} was saved, but an older one stays: {}", result->step, result->untidy));
    }
    if (!local_->are_on()) {
      local_->forget();  // the run may have resumed from there
    }
  }
  return message;
}

}  // namespace lehr::train
