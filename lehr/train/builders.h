// The functions that build the parts of a run from its config; each can be replaced by the user.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/build_optimizer.h"
#include "lehr/train/batches.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"
#include "lehr/train/validate.h"

namespace lehr::train {

/// The factor on the learning rate at each 0-based step.
using LearningRateFactor = std::function<double(int64_t step)>;

/// Returns the tokenizer of [tokenizer] or [model]. Throws a usage error if neither names one.
std::unique_ptr<data::Tokenizer> build_tokenizer(const TrainConfig& config);

/// Returns the warning that the run's tokenizer gives other ids than the tokenizer in the folder of a model; empty if
/// it does not, or if the folder has none.
std::string other_tokenizer_warning(
    const TrainConfig& config, const data::Tokenizer& tokenizer, const std::filesystem::path& folder);

/// Returns the warning that weights in the folder of a model were trained with other settings than `args` has, which
/// shapes of tensors do not show, such as rope_theta; empty if all agree, or if the folder has no config.json of the
/// family.
std::string other_settings_warning(
    const descriptor::ModelFamily& family, const descriptor::ModelArgs& args, const std::filesystem::path& folder);

/// Returns the shape of the model (torchtitan's update_from_config): the flavor, or model.hf_assets_path's config.json;
/// with the overrides of [model.args] and the head that the task needs; checked against the tokenizer and
/// training.seq_len. Throws usage errors that name the key.
std::unique_ptr<descriptor::ModelArgs> build_model_args(
    const TrainConfig& config, const descriptor::ModelFamily& family, const data::Tokenizer& tokenizer);

/// Builds one stage of the model on meta, or the whole model if it has one stage.
std::shared_ptr<nn::Model> build_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const pipeline::PipelineStageInfo& stage = {});

/// Returns the task, which includes the loss, of training.task.
std::unique_ptr<TrainTask> build_task(const TrainConfig& config);

/// Returns the schedule of [lr_scheduler].
LearningRateFactor build_lr_schedule(const TrainConfig& config);

/// The functions that a trainer calls, in this order. The defaults are the functions above with the same names, and
/// those of train/batches.h, optim/build_optimizer.h and train/validate.h. The results of a replacement are not
/// checked.
struct Builders {
  std::function<std::unique_ptr<data::Tokenizer>(const TrainConfig&)> tokenizer = build_tokenizer;
  std::function<std::unique_ptr<descriptor::ModelArgs>(
      const TrainConfig&, const descriptor::ModelFamily&, const data::Tokenizer&)>
      model_args = build_model_args;
  std::function<std::unique_ptr<TrainTask>(const TrainConfig&)> task = build_task;
  std::function<RunData(
      const TrainConfig&,
      const data::Tokenizer&,
      const ModelIds& model,
      const std::function<void(const std::string&)>& inform)>
      data = open_run_data;
  std::function<LearningRateFactor(const TrainConfig&)> lr_schedule = build_lr_schedule;
  std::function<std::shared_ptr<nn::Model>(
      const TrainConfig&, const descriptor::ModelArgs&, const pipeline::PipelineStageInfo&)>
      model = build_model;
  optim::OptimizerBuilder optimizer = optim::build_optimizer;
  std::function<ValidationResult(nn::Model&, const TrainTask&, BatchStream&, const ValidateOptions&)> validate =
      train::validate;
};

}  // namespace lehr::train
