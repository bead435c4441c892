// The parts of a training run, and the function that builds them in order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/train/batches.h"
#include "lehr/train/chat.h"
#include "lehr/train/config.h"
#include "lehr/train/distillation.h"
#include "lehr/train/events.h"
#include "lehr/train/load_on_ranks.h"
#include "lehr/train/loss_spikes.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/ranks.h"
#include "lehr/train/recompute_choice.h"
#include "lehr/train/run_checkpoint.h"
#include "lehr/train/run_lock.h"
#include "lehr/train/run_log.h"
#include "lehr/train/step.h"
#include "lehr/train/stragglers.h"
#include "lehr/train/task.h"
#include "lehr/train/train_spec.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

/// The parts of the surrounding program that a run uses.
struct RunEnvironment {
  const TrainSpecs& specs;  ///< The models that can be trained; must outlive the run.
  Logger& log;
  /// Asked after every step, and between the batches of a validation; true saves and ends the run.
  std::function<bool()> stop_requested = {};
  /// Connects this rank to the others; null: one device. Must outlive the run. `log` should be quiet on all ranks but
  /// the first.
  mesh::Transport* transport = nullptr;
  /// Predicts the memory of a training step on the CPUs of that many ranks, for activation_checkpoint.mode = "auto" and
  /// for the report at the start; may throw if there is no prediction.
  std::function<StepForecast(
      const TrainConfig& config, const TrainSpec& spec, const descriptor::ModelArgs& args, int64_t world_size)>
      forecast = {};
  /// Bytes that this rank's machine grants its ranks; default: nine tenths of granted_memory()
  /// (memory/granted_memory.h).
  std::optional<int64_t> memory = {};
  /// True to read back and log the results of a step only after the next step was launched, so that a GPU never waits
  /// for the host. Default: on a GPU. Never done if a handler on some rank has to see the model between two steps, or
  /// if TrainStep::can_defer_readback() is false.
  std::optional<bool> deferred_results = {};
  /// Requests profiling.operator_table for this start only: the config.toml of the run does not contain it.
  bool profile = false;
};

/// One rank's part of a run. Its members refer to one another, so it never moves.
struct Run {
  /// Reads tokenizer, model arguments and task; checks nothing.
  Run(TrainConfig config, const RunEnvironment& environment);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// The model with all parameter names, even if this rank has only some of its stages.
  const nn::Model& named_model() const { return whole ? *whole : *model; }

  TrainConfig config;  ///< `training.steps` is cut to the length of the data.
  const TrainSpec& spec;
  Logger& logger;
  Ranks ranks;
  EventBus events;
  at::Device device;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<descriptor::ModelArgs> args;
  std::unique_ptr<TrainTask> task;
  std::optional<pretrained::ModelFolder> teacher;  ///< Of [distillation]; nullopt without one.
  std::unique_ptr<ModelOnRanks> teacher_on_ranks;  ///< With several ranks: its shards.
  std::unique_ptr<DistillationTask> distillation;  ///< The task of training with a teacher; validations use `task`.
  RunData data;
  std::shared_ptr<nn::Model> model;
  std::shared_ptr<const nn::Model> whole;    ///< On meta, if `model` has some stages and only a part of it trains.
  std::vector<shard::FullySharded> sharded;  ///< With several ranks: of the model or of each of its stages.
  std::unique_ptr<Pipeline> pipeline;        ///< Null with one stage.
  std::unique_ptr<optim::Optimizer> optimizer;
  LearningRateFactor lr_factor;            ///< By 0-based step.
  std::unique_ptr<LossSpikes> spikes;      ///< Null if reliability.spike_factor is 0.
  std::unique_ptr<Stragglers> stragglers;  ///< Null if reliability.straggler_factor is 0.
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<RunLock> lock;
  std::unique_ptr<RunCheckpoints> checkpoints;  ///< Null if checkpoint.enable is false.
  std::unique_ptr<RunLog> log;                  ///< The main rank's; null on the others.
  RunState state;
};

/// Builds a whole run and, if there is a checkpoint, loads it. Throws usage errors before memory is allocated wherever
/// they can be detected by then. All ranks call it together.
std::unique_ptr<Run> build_run(TrainConfig config, const RunEnvironment& environment);

/// The prompt of [sample] as token ids. `run` needs its tokenizer and model arguments only.
Prompt sample_prompt(const Run& run);

}  // namespace lehr::train
