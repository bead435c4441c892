#include "test/train/support.h"

#include <fstream>

namespace lehr::train::testing {

TrainSpecs specs() {
  TrainSpecs list;
  list.add({.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense});
  list.add({.family = model::qwen3_moe_family(), .parallelize = model::parallelize_qwen3_moe});
  list.add({.family = model::llama3_family(), .parallelize = model::parallelize_llama3});
  list.add({.family = model::olmo2_family(), .parallelize = model::parallelize_olmo2});
  list.add({.family = model::qwen2_family(), .parallelize = model::parallelize_qwen2});
  list.add({.family = model::mistral_family(), .parallelize = model::parallelize_mistral});
  list.add({.family = model::smollm3_family(), .parallelize = model::parallelize_smollm3});
  list.add({.family = model::olmo3_family(), .parallelize = model::parallelize_olmo3});
  list.add({.family = model::gemma3_family(), .parallelize = model::parallelize_gemma3});
  list.add({.family = model::gemma4_family(), .parallelize = model::parallelize_gemma4});
  list.add({.family = model::mixtral_family(), .parallelize = model::parallelize_mixtral});
  list.add({.family = model::deepseek_v3_family(), .parallelize = model::parallelize_deepseek_v3});
  list.add({.family = model::glm4_moe_family(), .parallelize = model::parallelize_glm4_moe});
  list.add({.family = model::minimax_m2_family(), .parallelize = model::parallelize_minimax_m2});
  list.add({.family = model::gpt_oss_family(), .parallelize = model::parallelize_gpt_oss});
  list.add({.family = model::qwen3_next_family(), .parallelize = model::parallelize_qwen3_next});
  list.add({.family = model::qwen3_5_family(), .parallelize = model::parallelize_qwen3_5});
  list.add({.family = model::qwen3_5_moe_family(), .parallelize = model::parallelize_qwen3_5_moe});
  list.add({.family = model::nemotron_h_family(), .parallelize = model::parallelize_nemotron_h});
  return list;
}

descriptor::ModelFamilies families() {
  return specs().families();
}

Overrides joined(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

TrainConfig tiny_run(const std::filesystem::path& folder, const Overrides& overrides) {
  const std::string text = R"(
[model]
name = "qwen3"
flavor = "debugmodel"
[model.args]
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 8
vocab_size = 257
[tokenizer]
path = "byte"
[data]
validation_fraction = 0.001
[[data.datasets]]
path = "recipe/data/tinyshakespeare.txt"
[training]
seq_len = 32
local_batch_size = 2
global_batch_size = 4
steps = 12
[lr_scheduler]
warmup_steps = 2
[checkpoint]
interval = 4
keep_latest_k = 3
[validation]
enable = true
freq = 6
[metrics]
measure_peak = false
enable_tensorboard = false
)";
  const auto file = folder / "run.toml";
  write_file_atomically(file, text);
  auto all = overrides;
  all.emplace_back("job.dump_folder", "\"" + (folder / "out").string() + "\"");
  return load_config<TrainConfig>({.file = file, .overrides = all});
}

std::vector<double> curve(const TrainConfig& config, const std::string& key) {
  return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", key).values;
}

TrainResult train(const TrainConfig& config, int64_t stop_after) {
  Logger log("", true);
  const auto list = specs();
  int64_t steps = 0;
  Trainer trainer(
      config, {.specs = list, .log = log, .stop_requested = [&] { return stop_after > 0 && steps >= stop_after; }});
  trainer.events().subscribe(Event::step_end, [&](const EventContext&) { ++steps; });
  return trainer.run();
}

std::unique_ptr<optim::Optimizer> default_optimizer(const nn::Model& model) {
  optim::OptimizerContext context;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (parameter->trainable()) {
      context.parameters.push_back({.name = name, .shape = parameter->shape()});
    }
  }
  return optim::build_optimizer({}, context);
}

std::map<std::string, at::Tensor> tensors(const std::filesystem::path& folder, const std::string& stem) {
  const state::WeightReader reader(folder, stem);
  std::map<std::string, at::Tensor> all;
  for (const auto& name : reader.names()) {
    all[name] = reader.tensor(name).clone();
  }
  return all;
}

void expect_same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

void flip_last_bit(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const int last = stream.get();
  stream.seekp(-1, std::ios::end).put(static_cast<char>(last ^ 1));
}

std::filesystem::path checkpoint(const TrainConfig& config, int64_t step) {
  return std::filesystem::path(config.job.dump_folder) / "checkpoints" / ("step-" + std::to_string(step));
}

}  // namespace lehr::train::testing
