// Sums of losses and metrics over the micro-batches of a step, on one rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Sums over the batches of a step so far.
struct StepSums {
  at::Tensor loss = {};  ///< Divided by the step's valid items; undefined before the first batch.
  std::map<std::string, at::Tensor> metrics = {};
  at::Tensor load_balancing = {};  ///< Router loss, float64 on the device; undefined before the first batch.
  at::Tensor router_z = {};

  /// Adds the router losses of a forward that is `share` of the step.
  void add_routers(const nn::RouterLosses& routers, double share);
  void add(const at::Tensor& batch_loss, const std::map<std::string, at::Tensor>& batch_metrics);
};

/// Packs one-element tensors into one tensor (n) of float64, on the device of the first that is defined; 0 for
/// undefined tensors. No host sync if all are on one device.
at::Tensor pack_numbers(const std::vector<at::Tensor>& tensors);

/// Returns the task's metrics of a batch. Throws a usage error for a metric that is not a single number.
std::map<std::string, at::Tensor> compute_metrics(
    const TrainTask& task, const nn::ModelOutputs& outputs, const Batch& batch);

}  // namespace lehr::train
