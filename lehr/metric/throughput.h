// How fast training goes: tokens a second, step time, use of the machine's peak, and the memory of this process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "lehr/base/torch.h"

namespace lehr::metric {

/// Tokens a second over the last steps. Time between pause() and resume() (validation, checkpoints) does not count.
class ThroughputMeter {
 public:
  /// Seconds that only grow.
  using Clock = std::function<double()>;

  /// Averages over the last `window` steps, at least 1. Time runs from here on.
  explicit ThroughputMeter(size_t window = 20, Clock clock = steady_seconds);

  /// Ends a step in which `tokens` were trained.
  void step(int64_t tokens);
  void pause();
  void resume();

  /// Over the window; 0 before the first step.
  double tokens_per_second() const;
  /// Mean over the window in seconds, without pauses; 0 before the first step.
  double step_seconds() const;
  /// Of the last step alone.
  double last_step_seconds() const;

  static double steady_seconds();

 private:
  struct Step {
    double seconds = 0;
    int64_t tokens = 0;
  };

  size_t window_;
  Clock clock_;
  std::deque<Step> steps_;
  double began_;        ///< When the running step began, or went on after a pause.
  double counted_ = 0;  ///< Seconds of the running step before the last pause.
  bool paused_ = false;
};

/// The share (0 to 1) of `peak_flops` that a run uses; 0 when the peak is not known (0).
double model_flops_utilization(double flops_per_token, double tokens_per_second, double peak_flops);

/// Floating-point operations a second of the fastest square matrix product found on `device` within about `seconds`.
/// The peak that this machine really reaches with this many threads, which is what a share of "measured peak" refers
/// to.
double measure_peak_flops(at::Device device, at::ScalarType dtype, double seconds = 0.15);

/// The memory of this process in bytes, from /proc/self/status; zeros where there is none.
struct ProcessMemory {
  int64_t resident = 0;
  int64_t peak_resident = 0;
};
ProcessMemory process_memory();

}  // namespace lehr::metric
