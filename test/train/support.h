// Shared code of the tests of the training loop: tiny runs on real text, in a temporary folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/config/config.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"
#include "lehr/state/weights.h"
#include "lehr/train/trainer.h"

namespace lehr::train::testing {

/// The families that the tests train.
inline TrainSpecs specs() {
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
  list.add({.family = model::mixtral_family(), .parallelize = model::parallelize_mixtral});
  list.add({.family = model::deepseek_v3_family(), .parallelize = model::parallelize_deepseek_v3});
  list.add({.family = model::glm4_moe_family(), .parallelize = model::parallelize_glm4_moe});
  list.add({.family = model::gpt_oss_family(), .parallelize = model::parallelize_gpt_oss});
  list.add({.family = model::qwen3_next_family(), .parallelize = model::parallelize_qwen3_next});
  list.add({.family = model::nemotron_h_family(), .parallelize = model::parallelize_nemotron_h});
  return list;
}

inline descriptor::ModelFamilies families() {
  return specs().families();
}

/// A folder that is removed when the test ends.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lehr-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A run of 20 steps of a tiny Qwen3 on tiny Shakespeare, changed by `overrides`.
inline TrainConfig tiny_run(
    const std::filesystem::path& folder, const std::vector<std::pair<std::string, std::string>>& overrides = {}) {
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

/// The values of a key in metrics.jsonl of a run that has ended.
inline std::vector<double> curve(const TrainConfig& config, const std::string& key) {
  return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", key).values;
}

/// Trains without output; `stop_after` > 0 ends the run after that step, as a signal would.
inline TrainResult train(const TrainConfig& config, int64_t stop_after = 0) {
  Logger log("", true);
  const auto list = specs();
  int64_t steps = 0;
  Trainer trainer(
      config, {.specs = list, .log = log, .stop_requested = [&] { return stop_after > 0 && steps >= stop_after; }});
  trainer.events().subscribe(Event::step_end, [&](const EventContext&) { ++steps; });
  return trainer.run();
}

/// The optimizer of a default config, for the trainable parameters of a model.
inline std::unique_ptr<optim::Optimizer> default_optimizer(const nn::Model& model) {
  optim::OptimizerContext context;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (parameter->trainable()) {
      context.parameters.push_back({.name = name, .shape = parameter->shape()});
    }
  }
  return optim::build_optimizer({}, context);
}

/// The tensors in the files of a checkpoint with that stem.
inline std::map<std::string, at::Tensor> tensors(const std::filesystem::path& folder, const std::string& stem) {
  const state::WeightReader reader(folder, stem);
  std::map<std::string, at::Tensor> all;
  for (const auto& name : reader.names()) {
    all[name] = reader.tensor(name).clone();
  }
  return all;
}

inline void expect_same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

/// The folder of a step's checkpoint.
inline std::filesystem::path checkpoint(const TrainConfig& config, int64_t step) {
  return std::filesystem::path(config.job.dump_folder) / "checkpoints" / ("step-" + std::to_string(step));
}

}  // namespace lehr::train::testing
