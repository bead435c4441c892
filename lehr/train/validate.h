// Loss on held-out data.
#pragma once

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
};

/// Runs the model over `stream` without gradients; at most `max_batches` batches if that is positive. Throws a usage
/// error if there was nothing to measure.
ValidationResult validate(nn::Model& model, const TrainTask& task, BatchStream& stream, int64_t max_batches);

}  // namespace lehr::train
