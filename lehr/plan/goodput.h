// Expected goodput of a run whose devices fail, and the best interval between its checkpoints.
#pragma once

#include "lehr/plan/machine.h"

namespace lehr::plan {

/// The failure rate of a run, and the cost of a checkpoint and of a restart. All in seconds.
struct FailureModel {
  double mtbf = 0;     ///< Mean time between failures of the whole run; failures are a Poisson process.
  double blocked = 0;  ///< A save stops training for this long,
  double writing = 0;  ///< and is durable this long after that, while training continues.
  double restart = 0;  ///< From a failure until training continues from the last durable checkpoint.

  /// Returns the fraction of time spent in steps whose results survive failures, if `interval` seconds of training lie
  /// between two saves (docs/plan.md derives it). Precondition: a save is durable before the next one begins, writing
  /// <= interval.
  double goodput(double interval) const;
  /// Returns the interval with the highest goodput, at least `writing`. Young's sqrt(2 blocked mtbf) (Communications of
  /// the ACM 17(9), 1974) is its limit for rare failures.
  double best_interval() const;
};

/// The checkpoints and failures of a run on a machine.
struct GoodputPrediction {
  FailureModel failures;
  double checkpoint_bytes = 0;  ///< Of the rank that saves the most.
  double best_interval = 0;     ///< Seconds of training between two saves.
  double best_goodput = 0;
  double interval = 0;  ///< That of the config.
  double goodput = 0;   ///< With it; 0 if a save takes longer than the interval.
};

/// Returns the failures of `devices` of this machine, which has device_mtbf_hours, for saves of `checkpoint_bytes` per
/// device: with `asynchronous` ones a run waits only for the copy to the host.
FailureModel failure_model(const Machine& machine, int64_t devices, double checkpoint_bytes, bool asynchronous);

}  // namespace lehr::plan
