// Goodput: the share of wall time since the start that was spent computing steps, and the shares of everything else.
#pragma once

#include <map>
#include <string>

#include "lehr/train/time_left.h"

namespace lehr::train {

/// Adds up the seconds of an invocation.
class Goodput {
 public:
  /// The seconds until the first step. Pauses before it, such as a validation that the start repeats, count as pauses.
  void started(double seconds);
  /// The seconds of a step, which include those that it waited for its batch.
  void step(double seconds) { in_steps_ += seconds; }
  void waited_for_data(double seconds) { for_data_ += seconds; }
  void paused(TimeLeft::Pause reason, double seconds) { pauses_[reason] += seconds; }

  /// "96.2 % of 12m00s in steps; before the first step 1.0 %, waiting for data 0.1 %, validations 1.8 %, saves 0.7 %,
  /// other 0.2 %" for a start that took `seconds`. Kinds without time are left out.
  std::string describe(double seconds) const;

 private:
  double before_steps_ = 0;
  double in_steps_ = 0;  // with for_data_
  double for_data_ = 0;
  std::map<TimeLeft::Pause, double> pauses_;
};

}  // namespace lehr::train
