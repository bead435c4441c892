// Loss on held-out data.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lehr/train/batches.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Means over the valid items of all batches seen.
struct ValidationResult {
  double loss = 0;
  int64_t valid = 0;
  std::map<std::string, double> metrics;
  bool complete = true;  ///< False when `stop` ended it early; there are no means then.
};

/// Runs the model over `stream` without gradients; at most `max_batches` batches if that is positive, and until `stop`
/// (if given) says so, which is asked before every batch. Throws a usage error if there was nothing to measure.
ValidationResult validate(
    nn::Model& model,
    const TrainTask& task,
    BatchStream& stream,
    int64_t max_batches,
    const std::function<bool()>& stop = {});

}  // namespace lehr::train
