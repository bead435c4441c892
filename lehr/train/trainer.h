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
  const TrainConfig& config() const { return run_->config; }
  const Ranks& ranks() const { return run_->ranks; }

  /// Trains to the end, or until a stop is requested.
  TrainResult run();

 private:
  void train();
  void begin_step(int64_t step);
  void end_step(LaunchedStep launched, double lr_factor);
  void log_communicators() const;
  void log_step(RunState state, const StepResult& result, double learning_rate);
  void validate_if_cut_short();
  void validate(int64_t step);
  void save(int64_t step);
  void finish();
  void write_sample();
  bool results_are_deferred() const;
  bool stop_requested();
  bool due(int64_t every, int64_t step) const;
  bool validation_due(int64_t step) const;
  bool save_due(int64_t step) const;
  void emit(Event event, int64_t step, const std::map<std::string, double>* metrics = nullptr) const {
    run_->events.emit(event, {.step = step, .model = run_->model.get(), .metrics = metrics});
  }
  class Pause;

  Environment environment_;
  std::unique_ptr<Run> run_;
  std::optional<DeferredResults> results_;
  std::optional<std::string> last_save_problem_;
  TrainResult result_;
  bool communicators_logged_ = false;
};

}  // namespace lehr::train
