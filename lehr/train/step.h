// One optimizer step: forward and backward over its batches, clipping, update.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/memory/async_copy.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/model.h"
#include "lehr/optim/clip.h"
#include "lehr/optim/optimizer.h"
#include "lehr/shard/fully_shard.h"
#include "lehr/train/events.h"
#include "lehr/train/model_stage.h"
#include "lehr/train/precision.h"
#include "lehr/train/ranks.h"
#include "lehr/train/step_graph.h"
#include "lehr/train/step_sums.h"
#include "lehr/train/step_work.h"
#include "lehr/train/task.h"

namespace lehr::train {

class LossSpikes;
class Pipeline;

/// Returns the position of this rank's shard in the whole parameter, as optimizers take it.
optim::ShardSpan placement_of(const nn::Parameter& parameter);

/// The result of a step.
struct StepResult {
  double loss = 0;                        ///< Mean over the valid items of the step.
  double grad_norm = 0;                   ///< Before clipping.
  StepWork work;                          ///< The work of all ranks.
  double resident_bytes = 0;              ///< Memory of all ranks' processes before the update; 0 on one device.
  bool updated = false;                   ///< False if the update was skipped: a value was not finite, or a spike.
  std::optional<double> spike = {};       ///< The median loss that this one is a spike over: LossSpikes.
  std::map<std::string, double> metrics;  ///< The task's metrics, as means; those of the routers.
  at::Tensor tokens_per_expert;           ///< (MoE layers, E) int64, of this step; undefined without experts.
};

/// Hashes of the bits that forward and backward of one micro-batch leave on this rank: its loss, and gradients by name.
struct MicrobatchBits {
  int64_t loss = 0;
  std::map<std::string, int64_t> gradients = {};
  bool operator==(const MicrobatchBits&) const = default;
};

/// A step that was launched on the device, for TrainStep::finish.
struct LaunchedStep {
  int64_t step = 0;
  StepResult result = {};  ///< Complete, unless the metrics are being copied to the host.
  bool deferred = false;
  std::vector<std::string> metrics = {};  ///< The task's metrics, the last entries of `numbers`; of all stages.
  AsyncCopy numbers = {};
  AsyncCopy tokens_per_expert = {};
  AsyncCopy unknown_ids = {};  ///< See nn::SplitTokenEmbeddings::unknown_ids.
};

class TrainStep;

/// The gradients of one step between TrainStep::forward_backward and TrainStep::update. Its destructor clears the
/// model's gradients.
class StepGradients {
 private:
  friend class TrainStep;
  StepGradients(TrainStep& step, int64_t number) : launched_{.step = number}, clear_(&step) {}
  // Without a valid item in the step there are no gradients to clip or to apply.
  bool empty() const { return launched_.result.work.valid == 0; }

  LaunchedStep launched_;
  std::vector<optim::NamedParameter> parameters_;  // with their gradients
  StepSums sums_;
  at::Tensor norm_;     // before clipping, on the device
  at::Tensor divisor_;  // scales the norm down to the maximum; undefined without clipping
  struct Clear {
    Clear() {}  // not defaulted: a default argument of unique_ptr needs it before the class is complete
    void operator()(TrainStep* step) const;
    bool finished = false;  // if false, FSDP's pending work is dropped, too
  };
  std::unique_ptr<TrainStep, Clear> clear_;
};

/// Trains a model step by step. Owns the arithmetic of gradients, not the loop around it.
class TrainStep {
 public:
  struct Options {
    int64_t local_batch_size = 1;  ///< Sequences in a micro-batch.
    double max_norm = 0;           ///< 0: no clipping.
    optim::NonFinitePolicy non_finite = optim::NonFinitePolicy::stop;
    at::ScalarType compute = at::kFloat;
    uint64_t seed = 0;
    double router_aux_loss_coef = 0;  ///< For models with experts; see nn::RouterLosses.
    double router_z_loss_coef = 0;
    double load_balance_coeff = 0;  ///< For models with expert biases; see nn::TopKRouter.
    const Ranks* ranks = nullptr;   ///< Null: one device.
    /// With several ranks: the sharded model, or its stages; they compute in their own dtype.
    std::vector<shard::FullySharded>* sharded = nullptr;
    std::optional<at::Device> device = {};       ///< Device of forward; by default that of the parameters.
    Pipeline* pipeline = nullptr;                ///< Set if the model's stages are on several ranks.
    ops::Recorder recorder = {};                 ///< Records batches (check_cuda_graphs); null: no recording.
    LossSpikes* spikes = nullptr;                ///< Judges the loss of each step; null: none.
    std::function<void()> gradients_ready = {};  ///< Called by clip(), before the norm: may change gradients in place.
    std::function<void()> before_update = {};    ///< Called once the update is decided on.
  };
  /// All references must outlive this object.
  TrainStep(nn::Model& model, const TrainTask& task, optim::Optimizer& optimizer, Options options);

  /// Runs step `step` (1-based) on all sequences of `batch`, with the schedule's factor. With several ranks `batch` has
  /// the sequences of this rank, of which the first is sequence `first_row` of the step. A step without a valid item
  /// changes nothing. Throws a runtime error for a non-finite loss or gradient under optim::NonFinitePolicy::stop; the
  /// weights are then unchanged. Clears all gradients, even if it throws.
  StepResult run(const Batch& batch, int64_t first_row, int64_t step, double lr_factor);

  /// @name run() in four parts
  /// @{
  /// Forward and backward of all micro-batches; sums the gradients over them and over ranks.
  StepGradients forward_backward(const Batch& batch, int64_t first_row, int64_t step);
  /// Calls gradients_ready; computes the norm of all gradients, and the divisor by which update() scales them so that
  /// it is at most Options::max_norm.
  void clip(StepGradients& gradients);
  /// Applies the optimizer and makes forward use the new weights. With `deferred`, which can_defer_readback() must
  /// allow, it does not wait for the device, which itself tests whether a value was not finite. If so, neither this
  /// step nor any later one changes weights; finish() throws as run() does, and the run has to end.
  LaunchedStep update(StepGradients gradients, double lr_factor, bool deferred);
  /// Reads the results back, which may wait for the device.
  StepResult finish(LaunchedStep launched);
  /// @}
  /// True if results can be deferred: a step that is not finite ends the run, weights are on the device that computes
  /// forward, and the optimizer can skip a step by itself. All ranks must decide alike: a rank without deferred results
  /// ends immediately, and the others would wait for it in the next step.
  bool can_defer_readback() const;

  /// Runs forward and backward of the first micro-batch of a step and returns their results. Neither the model nor its
  /// gradients change. Not with CUDA graphs. All ranks must call it.
  MicrobatchBits bits_of_microbatch(const Batch& batch, int64_t first_row, int64_t step);

  /// Makes forward use the current weights; call it after weights were changed from outside (a load). With
  /// `only_trained` frozen ones are as before.
  void refresh(bool only_trained = false);

 private:
  friend struct StepGradients::Clear;
  void clear_gradients();
  StepWork count_work_of_all(const Batch& batch) const;
  StageStep stage_step(const Batch& batch, int64_t first_row, int64_t step, int64_t valid) const;
  at::Tensor local_token_mask(const Batch& rows) const;
  void run_microbatches(StageStep& step);
  void run_microbatch(int64_t number);
  StepGraph::Sums run_recorded(const Batch& local, const at::Tensor& valid);
  void begin_forward();
  at::Tensor count_tokens_per_expert();
  at::Tensor pack(const at::Tensor& norm, const StepSums& sums, std::vector<std::string>& metrics) const;
  void read(LaunchedStep& launched);
  void admit(LaunchedStep& launched) const;
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
  nn::SplitTokenEmbeddingsImpl* embeddings_;  // null in a stage without embeddings
  bool has_experts_;                          // in the stages of this rank
  at::Tensor failed_;  // on the device, float32: 1 from the first deferred step that was not finite on
  MixedPrecision precision_;
  at::Device device_;
  const Ranks one_device_;
  const Ranks& ranks_;
  std::optional<ModelStage> whole_;  // the model, unless a pipeline has its stages
  std::optional<StepGraph> graph_;
};

}  // namespace lehr::train
