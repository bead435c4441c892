// One optimizer step: forward and backward over its batches, clipping, update.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/host_copy.h"
#include "lehr/nn/model.h"
#include "lehr/optim/clip.h"
#include "lehr/optim/optimizer.h"
#include "lehr/shard/fully_shard.h"
#include "lehr/train/events.h"
#include "lehr/train/precision.h"
#include "lehr/train/ranks.h"
#include "lehr/train/step_graph.h"
#include "lehr/train/step_sums.h"
#include "lehr/train/task.h"

namespace lehr::train {

class Pipeline;

/// The rows [first, first + count) of every tensor of a batch.
Batch rows_of(const Batch& batch, int64_t first, int64_t count);
Batch to_device(const Batch& batch, at::Device device);

/// Which part of the whole parameter this rank's value is, as optimizers take it.
optim::Placement placement_of(const nn::Parameter& parameter);

/// What a step gave.
struct StepResult {
  double loss = 0;                        ///< Mean over the valid items of the step.
  double grad_norm = 0;                   ///< Before clipping.
  int64_t valid = 0;                      ///< Valid items.
  bool updated = false;                   ///< False when the update was left out because something was not finite.
  std::map<std::string, double> metrics;  ///< The task's, as means; those of the routers.
  at::Tensor tokens_per_expert;           ///< (mixtures, E) int64, of this step; undefined without experts.
};

/// A step that was given to the device, for TrainStep::finish.
struct LaunchedStep {
  int64_t step = 0;
  StepResult result = {};  ///< All of it is there unless the numbers are on their way.
  bool late = false;
  std::vector<std::string> metrics = {};  ///< The task's, whose sums are the last of the numbers.
  HostCopy numbers = {};
  HostCopy tokens_per_expert = {};
};

/// Trains a model step by step. Owns gradients' arithmetic, not the loop around it.
class TrainStep {
 public:
  struct Options {
    int64_t local_batch_size = 1;
    double max_norm = 0;  ///< 0: no clipping.
    optim::NonFinitePolicy non_finite = optim::NonFinitePolicy::stop;
    at::ScalarType compute = at::kFloat;
    uint64_t seed = 0;
    double router_aux_loss_coef = 0;  ///< For models with experts; see nn::RouterLosses.
    double router_z_loss_coef = 0;
    double load_balance_coeff = 0;  ///< For models with expert biases; see nn::TopKRouter.
    const Ranks* ranks = nullptr;   ///< Null: one device.
    /// The model's, on many ranks, or those of its stages; they compute in their own type.
    std::vector<shard::FullySharded>* sharded = nullptr;
    std::optional<at::Device> device = {};       ///< Where forward computes; by default where the parameters are.
    Pipeline* pipeline = nullptr;                ///< Where the model's stages are on several ranks.
    ops::Recorder recorder = {};                 ///< Records batches (check_cuda_graphs); null: they are not recorded.
    std::function<void()> gradients_ready = {};  ///< Called when gradients are summed and judged, before the update.
  };
  /// All references must outlive this object.
  TrainStep(nn::Model& model, const TrainTask& task, optim::Optimizer& optimizer, Options options);

  /// Does step number `step` (1-based) on all rows of `batch`, with the schedule's factor. On many ranks `batch` has
  /// the rows that this one takes, of which the first is row `first_row` of the step. A step with nothing to learn from
  /// (no valid item) changes nothing. Throws a runtime error for a non-finite loss or gradient under
  /// optim::NonFinitePolicy::stop; weights are then as before. Leaves no gradients behind, whatever happens.
  StepResult run(const Batch& batch, int64_t first_row, int64_t step, double lr_factor);

  /// run() in two parts. If `late`, the first does not wait for what the device is given: whether something was not
  /// finite is then judged on the device, and if so, neither this step nor any late one that is launched after it
  /// changes weights; finish() throws what run() would, and the run has to end. Otherwise the first part does it all.
  /// Only where can_be_late() allows it.
  LaunchedStep launch(const Batch& batch, int64_t first_row, int64_t step, double lr_factor, bool late);
  StepResult finish(LaunchedStep launched);
  /// On one device, where a step that is not finite ends the run, and with an optimizer that leaves one out by itself.
  bool can_be_late() const;

  /// Shows forward the present weights; call after weights were changed from outside (a load).
  void refresh();

 private:
  void clear_gradients();
  int64_t count_valid(const Batch& batch) const;
  void run_rows(const Batch& rows, int64_t first_row, int64_t step, int64_t valid, bool only, StepSums& sums);
  StepGraph::Sums run_recorded(const Batch& local, const at::Tensor& valid);
  StepSums run_all_rows(const Batch& batch, int64_t first_row, int64_t step, int64_t valid);
  at::Tensor count_tokens_per_expert();
  void read(LaunchedStep& launched);
  bool admit(const LaunchedStep& launched) const;
  at::Tensor gradient_norm(const std::vector<optim::NamedParameter>& updates) const;
  void update_parameters(const std::vector<optim::NamedParameter>& updates, const optim::StepOptions& options);
  bool balances() const { return options_.router_aux_loss_coef > 0 || options_.router_z_loss_coef > 0; }
  template <class Do>
  void each_sharded(const Do& action);

  nn::Model& model_;
  const TrainTask& task_;
  optim::Optimizer& optimizer_;
  Options options_;
  std::vector<nn::NamedParameter> parameters_;
  at::Tensor failed_;  // on the device, float32: 1 once a late step was not finite
  MixedPrecision precision_;
  at::Device device_;
  const Ranks one_device_;
  const Ranks& ranks_;
  std::optional<StepGraph> graph_;
};

}  // namespace lehr::train
