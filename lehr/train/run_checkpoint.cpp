#include "lehr/train/run_checkpoint.h"

#include <fmt/ranges.h>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
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
}

namespace {
std::string torch_name(at::ScalarType type) {
  return type == at::kBFloat16 ? "bfloat16" : type == at::kDouble ? "float64" : "float32";
}

std::filesystem::path checkpoint_root(const TrainConfig& config) {
  return std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder;
}

Node generation_config(const descriptor::ModelArgs& args) {
  Node node = Node::make_table();
  const auto eos = args.eos_token_ids();
  if (!eos.empty()) {
    node.set("eos_token_id", Node(eos.front()));
  }
  if (const auto pad = args.pad_token_id()) {
    node.set("pad_token_id", Node(*pad));
  }
  node.set("do_sample", Node(true));
  return node;
}
}  // namespace

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
      names_(args.stored_names()),
      store_(std::make_unique<state::CheckpointStore>(checkpoint_root(config))),
      writer_(std::make_unique<state::AsyncCheckpointer>(*store_, config.checkpoint.keep_latest_k)) {
  store_->recover();
}

RunCheckpoints::~RunCheckpoints() = default;

std::optional<std::filesystem::path> RunCheckpoints::find() const {
  const int64_t wanted = config_.checkpoint.load_step;
  const auto complete = store_->list();
  if (wanted < 0) {
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

RunState RunCheckpoints::load(const std::filesystem::path& folder) {
  const std::string file = (folder / "trainer.json").string();
  const auto state = from_node<RunState>(parse_json_file(file), file);
  const TrainingConfig& training = config_.training;
  auto same = [&](const char* key, int64_t now, int64_t then) {
    require(
        now == then,
        "{}: the run so far had {} = {}, the config says {}; that would change the order of data. Keep it, or start a "
        "new "
        "run in another job.dump_folder with checkpoint.initial_load_path = \"{}\"",
        file,
        key,
        then,
        now,
        folder.string());
  };
  same("debug.seed", config_.debug.seed, state.seed);
  same("rows in a step (training.global_batch_size)", training.rows_per_step(), state.rows_per_step);
  same("training.seq_len", training.seq_len, state.seq_len);
  require(
      state.step <= training.steps,
      "training.steps: {} steps are done in {}, which is more than the {} asked for",
      state.step,
      folder.string(),
      training.steps);

  load_weights(model_, names_, state::WeightReader(folder));
  std::vector<optim::NamedParameter> parameters;
  for (const auto& [name, parameter] : nn::named_parameters(model_)) {
    parameters.push_back({name, parameter->value(), at::Tensor()});
  }
  optimizer_.allocate(parameters);
  const state::WeightReader reader(folder, "optimizer");
  std::map<std::string, at::Tensor> moments;
  for (const auto& name : reader.names()) {
    moments[name] = reader.tensor(name);
  }
  optimizer_.load_state(moments);
  return state;
}

std::vector<int64_t> RunCheckpoints::set_aside_after(int64_t step) {
  return store_->set_aside_after(step);
}

std::optional<std::string> RunCheckpoints::save(const RunState& state) {
  const int64_t max_shard_bytes = config_.checkpoint.max_shard_size_mb * 1000 * 1000;
  const auto dtype = nn::named_parameters(model_).front().parameter->value().scalar_type();
  state::CheckpointContents contents{.step = state.step, .weights = {}};
  contents.weights.push_back(
      {.stem = "model", .tensors = stored_tensors(model_, names_), .max_shard_bytes = max_shard_bytes});
  contents.weights.push_back({.stem = "optimizer", .tensors = optimizer_.state(), .max_shard_bytes = max_shard_bytes});
  contents.texts = tokenizer_files_;
  contents.texts.emplace_back("config.json", to_json(args_.to_hf_config(torch_name(dtype)), true) + "\n");
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
