// Evaluation of the loss on held-out data.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "lehr/train/batches.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Means over the valid items of all batches.
struct ValidationResult {
  double loss = 0;
  int64_t valid = 0;
  std::map<std::string, double> metrics;
  bool complete = true;  ///< False if `stop` ended it early; then there are no means.
};

/// Options of a validation.
struct ValidateOptions {
  std::function<bool()> stop = {};  ///< Called before every batch; true ends the validation. If any rank returns true,
                                    ///< all ranks stop.
  const Ranks* ranks = nullptr;     ///< Null: one device. Each rank's stream yields its own sequences.
  std::optional<at::Device> device = {};  ///< Device of forward; default: that of the parameters.
};

/// Runs the model over `stream` without gradients; the result is the same on all ranks. Throws a usage error if there
/// is no valid item.
ValidationResult validate(
    nn::Model& model, const TrainTask& task, BatchStream& stream, const ValidateOptions& options = {});

}  // namespace lehr::train
