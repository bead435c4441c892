// Spikes of the loss: losses far above the median of those before.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lehr/train/config.h"

namespace lehr::train {

/// Watches the losses of steps, which all ranks know with the same bits, so that all decide alike.
class LossSpikes {
 public:
  /// Of `config`, whose spike_factor is not 0. `before` are the losses of earlier steps, oldest first.
  explicit LossSpikes(const ReliabilityConfig& config, const std::vector<double>& before = {});

  /// Remembers the finite loss of a step. Returns the median of those before if it is a spike.
  std::optional<double> see(double loss);
  /// True if a spike changes the course of the run, and not only its log.
  bool acts() const { return config_.on_spike != OnSpike::warn; }
  /// Returns whether the step's update is applied. Throws a runtime error under OnSpike::stop.
  bool admit(int64_t step, double loss, double median) const;
  /// "step 12: the loss 9.1 is more than 2 times 3.3, the median of the last 32 steps".
  std::string describe(int64_t step, double loss, double median) const;

 private:
  ReliabilityConfig config_;
  std::deque<double> losses_;
};

}  // namespace lehr::train
