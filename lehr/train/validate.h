// Loss on held-out data.
#pragma once

#include <functional>
#include <map>
#include <optional>
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

/// How much is measured, and by whom.
struct ValidateOptions {
  std::function<bool()> stop = {};  ///< Asked before every batch; true ends it. On many ranks, any of them ends all.
  const Ranks* ranks = nullptr;     ///< Null: one device. Each rank's stream gives its own rows.
  std::optional<at::Device> device = {};  ///< Where forward computes; by default where the parameters are.
};

/// Runs the model over `stream` without gradients; the result is the same on all ranks. Throws a usage error if there
/// was nothing to measure.
ValidationResult validate(
    nn::Model& model, const TrainTask& task, BatchStream& stream, const ValidateOptions& options = {});

}  // namespace lehr::train
