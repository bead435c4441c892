// The training run: builds everything from a config, in order, and loops.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/train/batches.h"
#include "lehr/train/chat.h"
#include "lehr/train/config.h"
#include "lehr/train/events.h"
#include "lehr/train/ranks.h"
#include "lehr/train/run_checkpoint.h"
#include "lehr/train/run_lock.h"
#include "lehr/train/step.h"
#include "lehr/train/task.h"
#include "lehr/train/train_spec.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

class InitialLoad;
class Pipeline;
class RunLog;
struct ExpectedMemory;
struct StagePlan;

/// How a run ended.
struct TrainResult {
  int64_t step = 0;                       ///< Steps done over the whole run.
  bool stopped = false;                   ///< Ended early, on request; everything was saved.
  double loss = 0;                        ///< Of the last step.
  std::optional<double> validation_loss;  ///< Of the last validation.
};

/// One training run, or one rank's part of it: all ranks build one alike, and what they compute together equals what
/// one device computes. Not for several threads at once.
class Trainer {
 public:
  /// What a run needs of the program around it.
  struct Environment {
    const TrainSpecs& specs;  ///< What can be trained, and how it is built; must outlive the trainer.
    Logger& log;
    /// Asked after every step, and between batches of a validation; true saves and ends the run.
    std::function<bool()> stop_requested = {};
    /// Connects this rank to the others; null: one device. It must outlive the trainer. `log` should be quiet on all
    /// ranks but the first.
    mesh::Transport* transport = nullptr;
    /// The most bytes that tensors of a run on one device will take in a training step, for the report at the start.
    /// Asked for models so large that it matters; may throw what has no answer.
    std::function<int64_t(const TrainConfig& config, const TrainSpec& spec, const descriptor::ModelArgs& args)>
        predict_peak = {};
    /// Whether a step's numbers are read, logged and judged only when the next step was given to the device, which so
    /// never waits for the host. By default where there is a GPU; never where something is to see the model between two
    /// steps, several ranks take part, or a step that is not finite is skipped.
    std::optional<bool> late_results = {};
    /// As profiling.operator_table, for this start alone: the config.toml that the run leaves does not say so.
    bool profile = false;
  };

  /// Builds the whole run and, if there is a checkpoint, loads it. Throws usage errors before memory is allocated
  /// wherever they can be told by then.
  Trainer(TrainConfig config, Environment environment);
  ~Trainer();

  /// Subscribe before run().
  EventBus& events() { return events_; }
  nn::Model& model() { return *model_; }
  const TrainConfig& config() const { return config_; }
  const Ranks& ranks() const { return ranks_; }

  /// Trains to the end, or until a stop is requested.
  TrainResult run();

 private:
  void open_data();
  Prompt sample_prompt() const;
  void check_sample() const;
  void build_model();
  void plan_stages();
  void build_stages();
  void parallelize(nn::Model& model, const pipeline::PipelineStageInfo& stage);
  void restore();
  void place_in_time(const RunState& state);
  void start_adapters();
  void save_config() const;
  std::optional<ExpectedMemory> expected_memory() const;
  /// The model by all its names, whatever of it is on this rank.
  const nn::Model& by_names() const { return whole_ ? *whole_ : *model_; }
  bool due(int64_t every, int64_t step) const { return step % every == 0 || step == config_.training.steps; }
  bool validation_due(int64_t step) const { return config_.validation.enable && due(config_.validation.freq, step); }
  /// A step whose result is to be logged.
  struct DoneStep {
    LaunchedStep launched;
    RunState state;
    double learning_rate;
  };
  bool results_are_late() const;
  void conclude(std::optional<DoneStep>& done);
  template <class Next>
  auto after(std::optional<DoneStep>& before, const Next& next);
  void validate_now(int64_t step);
  void save(int64_t step);
  void finish();
  void write_sample();
  class Pause;

  TrainConfig config_;
  Environment environment_;
  const TrainSpec& spec_;
  Ranks ranks_;
  EventBus events_;
  at::Device device_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::unique_ptr<descriptor::ModelArgs> args_;
  std::unique_ptr<TrainTask> task_;
  RunData data_;
  std::shared_ptr<nn::Model> model_;
  std::shared_ptr<const nn::Model> whole_;    // on meta, if model_ is stages of a model of which a part trains
  std::vector<shard::FullySharded> sharded_;  // of many ranks: the model's, or its stages'
  std::unique_ptr<StagePlan> stage_plan_;     // of several stages, until they are built
  std::unique_ptr<Pipeline> pipeline_;        // of several stages
  std::unique_ptr<optim::Optimizer> optimizer_;
  LearningRateFactor lr_factor_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::optional<std::filesystem::path> resumes_from_;
  std::unique_ptr<InitialLoad> initial_load_;  // of a new run, or of what adapters stand on
  int64_t steps_asked_ = 0;                    // training.steps, whatever the data lasts
  bool always_profiles_;                       // the config's own profiling.operator_table
  std::optional<std::string> last_save_problem_;
  std::unique_ptr<RunLog> run_log_;  // the main rank's
  RunState state_;
  TrainResult result_;
};

}  // namespace lehr::train
