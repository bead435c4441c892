// The training loop.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lehr/train/deferred_results.h"
#include "lehr/train/run.h"

namespace lehr::train {

/// The result of a run.
struct TrainResult {
  int64_t step = 0;                       ///< Steps done over the whole run.
  bool stopped = false;                   ///< Ended early, on request; everything was saved.
  double loss = 0;                        ///< Loss of the last step.
  std::optional<double> validation_loss;  ///< Loss of the last validation.
};

/// One training run, or one rank's part of it: all ranks build one alike, and together they compute what one device
/// computes. Not thread-safe.
class Trainer {
 public:
  using Environment = RunEnvironment;

  /// Builds the run: build_run().
  Trainer(TrainConfig config, Environment environment);
  ~Trainer();

  /// Subscribe before run().
  EventBus& events() { return run_->events; }
  nn::Model& model() { return *run_->model; }
  const descriptor::ModelArgs& model_args() const { return *run_->args; }
  const data::Tokenizer& tokenizer() const { return *run_->tokenizer; }
  const TrainConfig& config() const { return run_->config; }
  const Ranks& ranks() const { return run_->ranks; }

  /// Trains to the end, or until a stop is requested.
  TrainResult run();

  /// @name run() in parts, for a loop of your own: begin(), step() until it returns false, finish()
  /// @{
  /// Opens the data at the step where the run starts or resumes.
  void begin();
  /// Trains one step, with the validation and the save that are due after it. Returns false, and does nothing, if the
  /// run has reached its last step or was stopped. After an exception the run can only be destroyed.
  bool step();
  /// Waits for the checkpoint that is being written, closes the log, writes the sample, and unlocks the run's folder.
  TrainResult finish();
  /// @}
  /// Saves a checkpoint after the last step() and waits until it is on disk; does nothing if that step is saved
  /// already. Throws a usage error if checkpoint.enable is false, and a runtime error if the save failed.
  void save_now();
  /// Makes forward use weights that were changed from outside between two steps.
  void refresh() { run_->step->refresh(); }

 private:
  void train_step();
  void begin_step(int64_t step);
  void end_step(LaunchedStep launched, double lr_factor);
  void log_communicators() const;
  void log_step(RunState state, const StepResult& result, double learning_rate);
  void validate_if_cut_short();
  bool validate(int64_t step);
  void save(int64_t step);
  void save_local();
  void finish_save();
  void warn_of_checkpoints();
  void close();
  void write_sample();
  bool results_are_deferred() const;
  bool stop_requested();
  bool due(int64_t every, int64_t step) const;
  bool validation_due(int64_t step) const;
  bool save_due(int64_t step) const;
  bool local_save_due(int64_t step) const;
  void emit(Event event, int64_t step, const std::map<std::string, double>* metrics = nullptr) const {
    run_->events.emit(event, {.step = step, .model = run_->model.get(), .metrics = metrics});
  }
  class Pause;

  Environment environment_;
  std::unique_ptr<Run> run_;
  std::optional<DeferredResults> results_;
  RowShare rows_;
  std::unique_ptr<BatchStream> batches_;  // from begin() on
  int64_t saved_step_ = -1;
  std::optional<std::string> last_save_problem_;
  TrainResult result_;
  bool communicators_logged_ = false;
};

}  // namespace lehr::train
