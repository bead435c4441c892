// What builds the parts of a run: functions of the config that a user may replace one by one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/train/batches.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"
#include "lehr/train/validate.h"

namespace lehr::train {

/// What the learning rate is multiplied by at each 0-based step.
using LearningRateFactor = std::function<double(int64_t step)>;

/// The tokenizer that [tokenizer] or [model] names. Throws a usage error if neither does.
std::unique_ptr<data::Tokenizer> build_tokenizer(const TrainConfig& config);

/// The shape of the model (torchtitan's update_from_config): the flavor, or model.hf_assets_path's config.json; changed
/// by [model.args]; with the head that the task needs; and checked against the tokenizer and training.seq_len. Throws
/// usage errors that name the key.
std::unique_ptr<descriptor::ModelArgs> build_model_args(
    const TrainConfig& config, const descriptor::ModelFamily& family, const data::Tokenizer& tokenizer);

/// One stage of the model on meta: all of it where the stage is the only one.
std::shared_ptr<nn::Model> build_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const pipeline::PipelineStageInfo& stage = {});

/// The task, and so the loss, that training.task names.
std::unique_ptr<TrainTask> build_task(const TrainConfig& config);

/// The schedule of [lr_scheduler].
LearningRateFactor build_lr_schedule(const TrainConfig& config);

/// The functions that a trainer calls, in this order; each default is the function of that name above, or what
/// train/batches.h, optim/optimizer.h and train/validate.h have. What a replacement gives is checked no further.
struct Builders {
  std::function<std::unique_ptr<data::Tokenizer>(const TrainConfig&)> tokenizer = build_tokenizer;
  std::function<std::unique_ptr<descriptor::ModelArgs>(
      const TrainConfig&, const descriptor::ModelFamily&, const data::Tokenizer&)>
      model_args = build_model_args;
  std::function<std::unique_ptr<TrainTask>(const TrainConfig&)> task = build_task;
  std::function<RunData(
      const TrainConfig&,
      const data::Tokenizer&,
      int64_t vocab_size,
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
