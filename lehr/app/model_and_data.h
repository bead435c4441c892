// A model and the data to evaluate it on, for the commands eval and score.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lehr/base/log.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/train/batches.h"
#include "lehr/train/ranks.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

/// A model that is opened but not loaded, and data that fits it.
struct ModelAndData {
  pretrained::ModelFolder model;
  const train::Builders* build = nullptr;  ///< Those of the model's family, which made `data` and `task`.
  std::unique_ptr<data::Tokenizer> tokenizer;
  train::RunData data;
  std::unique_ptr<train::TrainTask> task;
};

/// Returns the newest complete checkpoint of the config's run. Throws a usage error if there is none.
std::filesystem::path newest_checkpoint(const train::TrainConfig& config);

/// Returns `given`, or the newest checkpoint of the config's run: the same on all ranks, even while that run saves.
std::filesystem::path folder_of_model(
    const train::TrainConfig& config, const std::optional<std::string>& given, const train::Ranks& ranks);

/// Warns if `model` is an adapter folder of a run that was trained on other base weights. For the main rank.
void warn_of_another_base(const pretrained::ModelFolder& model, Logger& log);

/// Opens the model in `folder` and the config's data; `is_main`: on the main rank, which warns. Data and task are those
/// of the train spec of the model's family in `specs`, which must outlive the result; the tokenizer and its chat
/// template are those that the config names or those of the folder, and the number of labels the model's. Throws usage
/// errors that name a key of the config: sequences longer than the model's positions, a head of another task, more
/// labels in the data than the model has.
ModelAndData open_model_and_data(
    train::TrainConfig config,
    const std::filesystem::path& folder,
    const train::TrainSpecs& specs,
    Logger& log,
    bool is_main);

}  // namespace lehr::app
