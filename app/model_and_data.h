// A model and data to measure it on: what eval and score open before they do their work.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lehr/train/batches.h"
#include "lehr/train/model_folder.h"

namespace lehr::app {

/// Opened, not loaded, and held to each other.
struct ModelAndData {
  std::filesystem::path folder;
  train::ModelFolder model;
  std::unique_ptr<data::Tokenizer> tokenizer;
  train::RunData data;
  std::unique_ptr<train::TrainTask> task;
};

/// Opens the model in `folder`, by default the newest checkpoint of the config's run, and the config's data. Throws
/// usage errors that name a key of the config: rows longer than the model's positions, a head that is not the task's.
ModelAndData open_model_and_data(const train::TrainConfig& config, const std::optional<std::string>& folder);

}  // namespace lehr::app
