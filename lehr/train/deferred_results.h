// Results of training steps, read back one step later.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "lehr/train/run_checkpoint.h"
#include "lehr/train/step.h"

namespace lehr::train {

/// Reads the results of a step and logs them: immediately, or after the next step was launched, so that a GPU does not
/// wait for the host.
class DeferredResults {
 public:
  using Log = std::function<void(const RunState& state, const StepResult& result, double learning_rate)>;

  /// `step` must outlive the object. Without `deferred`, add() logs immediately.
  DeferredResults(TrainStep& step, bool deferred, Log log) : step_(step), deferred_(deferred), log_(std::move(log)) {}

  bool deferred() const { return deferred_; }
  /// `state` is that of the run after this step. The previous step must have been flushed.
  void add(LaunchedStep launched, const RunState& state, double learning_rate) {
    pending_ = Pending{std::move(launched), state, learning_rate};
    if (!deferred_) {
      flush();
    }
  }
  /// Reads and logs the step that was added last, unless it is logged already; may wait for the device. Throws as
  /// TrainStep::finish does for a step that ends the run.
  void flush() {
    if (auto pending = std::exchange(pending_, {})) {
      log_(pending->state, step_.finish(std::move(pending->launched)), pending->learning_rate);
    }
  }

 private:
  struct Pending {
    LaunchedStep launched;
    RunState state;
    double learning_rate;
  };
  TrainStep& step_;
  bool deferred_;
  Log log_;
  std::optional<Pending> pending_;
};

}  // namespace lehr::train
