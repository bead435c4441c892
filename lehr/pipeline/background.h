// Collectives of a rank that run while it computes or is idle: one after the other.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>

namespace lehr::pipeline {

/// Seconds are those of idle links, of which a computing rank leaves `speed`.
class BackgroundQueue {
 public:
  explicit BackgroundQueue(double speed) : speed_(speed) {}

  void start(double seconds) { left_.push_back(seconds); }
  void compute(double seconds) { idle(speed_ * seconds); }
  void idle(double seconds) {
    for (double& left : left_) {
      const double part = std::min(left, seconds);
      left -= part;
      seconds -= part;
    }
  }
  /// Waits for the oldest that was not waited for, and returns the seconds.
  double wait_for_next() {
    const double seconds = left_.front();
    left_.pop_front();
    return seconds;
  }
  /// Waits until all have ended, and returns the seconds.
  double wait_for_all() {
    double seconds = 0;
    for (double& left : left_) {
      seconds += std::exchange(left, 0);
    }
    return seconds;
  }

 private:
  double speed_;
  std::deque<double> left_;
};

}  // namespace lehr::pipeline
