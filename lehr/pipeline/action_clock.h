// The time of actions whose communication overlaps with other work of their rank.
#pragma once

#include <cstdint>

#include "lehr/pipeline/action.h"

namespace lehr::pipeline {

/// Times the actions of one simulation (pipeline/simulate.h), which asks for those of a rank in the order of its list.
/// Seconds count from the beginning of the step.
class ActionClock {
 public:
  virtual ~ActionClock() = default;
  /// Returns the seconds that `action` takes if it begins at `start`. The rank was idle since its last action.
  virtual double act(int64_t rank, const Action& action, double start) = 0;
  /// Returns the seconds until the rank's part of the step has ended, if its last action ended at `start`.
  virtual double finish(int64_t rank, double start) = 0;
};

}  // namespace lehr::pipeline
