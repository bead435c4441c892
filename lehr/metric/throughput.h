// Throughput of training: tokens per second, step time, utilization of the peak, and memory of this process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

namespace lehr::metric {

/// Tokens per second over the last steps. Time between pause() and resume() (validation, checkpoints) does not count.
class ThroughputMeter {
 public:
  /// A monotonic clock in seconds.
  using Clock = std::function<double()>;

  /// Averages over the last `window` steps, at least 1. The clock starts now.
  explicit ThroughputMeter(size_t window = 20, Clock clock = steady_seconds);

  /// Ends a step that trained `tokens` with `flops` floating-point operations.
  void step(int64_t tokens, double flops = 0);
  /// Restarts the clock of the current step: earlier time does not count.
  void restart();
  void pause();
  void resume();

  /// Returns the mean over the window; 0 before the first step.
  double tokens_per_second() const;
  double flops_per_second() const;
  /// Returns the mean over the window in seconds, without pauses; 0 before the first step.
  double step_seconds() const;
  /// Returns the seconds of the last step.
  double last_step_seconds() const;

  static double steady_seconds();

 private:
  struct Step {
    double seconds = 0;
    double tokens = 0;
    double flops = 0;
  };
  double per_second(double Step::*amount) const;

  size_t window_;
  Clock clock_;
  std::deque<Step> steps_;
  double began_;        ///< Start of the current step, or its last resume().
  double counted_ = 0;  ///< Seconds of the current step before the last pause.
  bool paused_ = false;
};

/// Returns the fraction of `peak_flops` that a run uses (MFU), more than 1 if the peak is too low; 0 if the peak is
/// unknown (0).
double model_flops_utilization(double flops_per_second, double peak_flops);

/// The memory of this process in bytes, from /proc/self/status; zeros if that is not available.
struct ProcessMemory {
  int64_t resident = 0;
  int64_t peak_resident = 0;
};
ProcessMemory process_memory();

}  // namespace lehr::metric
