#include "lehr/train/run_checkpoint.h"

#include <fmt/ranges.h>

#include <cmath>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/json.h"
#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/weights.h"
#include "lehr/train/weights.h"

namespace lehr::train {

void RunState::fields(FieldVisitor& v) {
  v.required("step", step, "Optimizer steps done.", at_least(0));
  v.required("num_tokens", num_tokens, "Valid items trained on.", at_least(0));
  v.required("skipped", skipped, "Updates left out because something was not finite.", at_least(0));
  v.required("seed", seed, "Seed of the run.");
  v.required("rows_per_step", rows_per_step, "Rows of an optimizer step.", positive());
  v.required("seq_len", seq_len, "Tokens in a row.", positive());
  v.optional("data_fingerprint", data_fingerprint, "Tells whether the data and its order are the same.");
}

namespace {

std::filesystem::path checkpoint_root(const TrainConfig& config) {
  return std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder;
}

Node generation_config(const descriptor::ModelArgs& args) {
  Node node = Node::make_table();
  const auto eos = args.eos_token_ids();
  if (eos.size() == 1) {
    node.set("eos_token_id", Node(eos.front()));
  } else if (!eos.empty()) {
    Node ids = Node::make_list();
    for (const int64_t id : eos) {
      ids.push_back(Node(id));
    }
    node.set("eos_token_id", ids);
  }
  if (const auto pad = args.pad_token_id()) {
    node.set("pad_token_id", Node(*pad));
  }
  node.set("do_sample", Node(true));
  return node;
}
// A checkpoint's weights may fit a model that computes something else: another base of the rotary frequencies, say.
void require_same_shape(const std::filesystem::path& file, const Node& now, const std::string& advice) {
  const Node then = parse_json_file(file);
  std::vector<std::string> differences;
  for (const auto& [key, value] : now.entries()) {
    const Node* before = then.find(key);
    if (before != nullptr && to_json(*before) != to_json(value)) {
      differences.push_back(fmt::format("{} = {}, now {}", key, to_json(*before), to_json(value)));
    }
  }
  require(
      differences.empty(),
      "{}: the run so far was of another model: {}; {}",
      file.string(),
      fmt::join(differences, "; "),
      advice);
}
}  // namespace

at::ScalarType RunCheckpoints::weights_type() const {
  return nn::named_parameters(model_).front().parameter->value().scalar_type();
}

RunCheckpoints::RunCheckpoints(
    const TrainConfig& config,
    const descriptor::ModelArgs& args,
    const data::Tokenizer& tokenizer,
    nn::Model& model,
    optim::AdamW& optimizer)
    : config_(config),
      args_(args),
      tokenizer_files_(data::tokenizer_file_contents(tokenizer)),
      model_(model),
      optimizer_(optimizer),
      map_(args.state_map(descriptor::ExpertLayout::per_expert)),
      store_(std::make_unique<state::CheckpointStore>(checkpoint_root(config))),
      writer_(std::make_unique<state::AsyncCheckpointer>(*store_, config.checkpoint.keep_latest_k)) {
  store_->recover();
}

RunCheckpoints::~RunCheckpoints() = default;

std::optional<std::filesystem::path> RunCheckpoints::find() const {
  const int64_t wanted = config_.checkpoint.load_step;
  const auto complete = store_->list();
  if (wanted < 0 || std::filesystem::exists(went_back_file(wanted))) {
    return complete.empty() ? std::nullopt : std::optional(complete.back().path);
  }
  for (const auto& [step, path] : complete) {
    if (step == wanted) {
      return path;
    }
  }
  std::vector<int64_t> steps;
  for (const auto& [step, path] : complete) {
    steps.push_back(step);
  }
  fail(
      "checkpoint.load_step: {} has no complete checkpoint of step {}; it has {}",
      store_->root().string(),
      wanted,
      steps.empty() ? "none" : fmt::format("those of step {}", fmt::join(steps, ", ")));
}

RunState RunCheckpoints::load(const std::filesystem::path& folder, const RunState& now) {
  const std::string file = (folder / "trainer.json").string();
  const auto state = from_node<RunState>(parse_json_file(file), file);
  const TrainingConfig& training = config_.training;
  const std::string advice = fmt::format(
      "that would change the order of data. Keep it, or start a new run in another job.dump_folder with "
      "checkpoint.initial_load_path = \"{}\"",
      folder.string());
  auto same = [&](const char* key, int64_t wanted, int64_t then) {
    require(wanted == then, "{}: the run so far had {} = {}, the config says {}; {}", file, key, then, wanted, advice);
  };
  same("debug.seed", now.seed, state.seed);
  same("rows in a step (training.global_batch_size)", now.rows_per_step, state.rows_per_step);
  same("training.seq_len", now.seq_len, state.seq_len);
  require(
      state.data_fingerprint.empty() || state.data_fingerprint == now.data_fingerprint,
      "{}: the run so far read other data than [data] says now (files, weights, packing, data.seed or what is held "
      "out); "
      "{}",
      file,
      advice);
  require_same_shape(folder / "config.json", args_.to_hf_config(state::torch_name(weights_type())), advice);
  require(
      state.step <= training.steps,
      "training.steps: {} steps are done in {}, which is more than the {} asked for",
      state.step,
      folder.string(),
      training.steps);

  load_weights(model_, map_, state::WeightReader(folder));
  const state::WeightReader reader(folder, "optimizer");
  std::map<std::string, at::Tensor> moments;
  for (const auto& name : reader.names()) {
    moments[name] = reader.tensor(name);
  }
  optimizer_.load_state(moments);
  return state;
}

std::filesystem::path RunCheckpoints::went_back_file(int64_t step) const {
  return store_->root() / fmt::format(".went-back-to-step-{}", step);
}

std::vector<int64_t> RunCheckpoints::went_back_to(int64_t step) {
  auto moved = store_->set_aside_after(step);
  write_file_atomically(went_back_file(step), "");
  return moved;
}

std::optional<std::string> RunCheckpoints::save(const RunState& state) {
  const int64_t max_shard_bytes = config_.checkpoint.max_shard_size_mb * 1000 * 1000;
  for (const auto& [name, parameter] : nn::named_parameters(model_)) {
    const auto [smallest, largest] = parameter->value().detach().aminmax();
    if (!std::isfinite(smallest.item<double>()) || !std::isfinite(largest.item<double>())) {
      fail_runtime(
          "step {}: {} is not finite any more, so nothing was saved and the run ends; the checkpoint before stands. Go "
          "on from it with a lower optimizer.lr",
          state.step,
          name);
    }
  }
  state::CheckpointContents contents{.step = state.step, .weights = {}};
  contents.weights.push_back(
      {.stem = "model", .tensors = stored_tensors(model_, map_), .max_shard_bytes = max_shard_bytes});
  contents.weights.push_back({.stem = "optimizer", .tensors = optimizer_.state(), .max_shard_bytes = max_shard_bytes});
  contents.texts = tokenizer_files_;
  contents.texts.emplace_back(
      "config.json", to_json(args_.to_hf_config(state::torch_name(weights_type())), true) + "\n");
  if (args_.head() == descriptor::Head::causal_lm) {
    contents.texts.emplace_back("generation_config.json", to_json(generation_config(args_), true) + "\n");
  }
  contents.texts.emplace_back("trainer.json", to_json(to_node(state), true) + "\n");
  writer_->save(contents);
  return failure();
}

std::optional<std::string> RunCheckpoints::wait() {
  writer_->wait();
  return failure();
}

std::optional<std::string> RunCheckpoints::failure() {
  std::optional<std::string> message;
  while (const auto result = writer_->poll()) {
    if (!result->ok()) {
      message = fmt::format("the checkpoint of step {} was not saved: {}", result->step, result->error);
    }
  }
  return message;
}

}  // namespace lehr::train
