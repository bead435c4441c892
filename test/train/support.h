// Shared code of the tests of the training loop: tiny runs on real text, in a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/config/config.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/gemma4/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_5/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"
#include "lehr/state/weights.h"
#include "lehr/train/trainer.h"
#include "test/base/temporary_folder.h"

namespace lehr::train::testing {

/// The families that the tests train.
TrainSpecs specs();

descriptor::ModelFamilies families();

using Folder = TemporaryFolder;

/// A run of 12 steps of a tiny Qwen3 on tiny Shakespeare, changed by `overrides`.
TrainConfig tiny_run(const std::filesystem::path& folder, const Overrides& overrides = {});
/// Returns `first` and then `more`, which has precedence.
Overrides joined(Overrides first, const Overrides& more);

/// The values of a key in metrics.jsonl of a run that has ended.
std::vector<double> curve(const TrainConfig& config, const std::string& key);

/// Trains without output; `stop_after` > 0 ends the run after that step, as a signal would.
TrainResult train(const TrainConfig& config, int64_t stop_after = 0);

/// The optimizer of a default config, for the trainable parameters of a model.
std::unique_ptr<optim::Optimizer> default_optimizer(const nn::Model& model);

/// The tensors in the files of a checkpoint with that stem.
std::map<std::string, at::Tensor> tensors(const std::filesystem::path& folder, const std::string& stem);

void expect_same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b);

void flip_last_bit(const std::filesystem::path& file);

/// The folder of a step's checkpoint.
std::filesystem::path checkpoint(const TrainConfig& config, int64_t step);

}  // namespace lehr::train::testing
