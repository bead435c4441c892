// Forward and backward of micro-batches: the one place that runs a model for training, on one device, in a recorded
// step, in a pipeline's stages and in the planner.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/ops/weight_gradients.h"
#include "lehr/pipeline/stage_runner.h"
#include "lehr/shard/fully_shard.h"
#include "lehr/train/step_sums.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// A micro-batch of a step.
struct Microbatch {
  Batch batch;                 ///< This rank's positions of the sequences, on the device.
  int64_t first_row = 0;       ///< Index of the first sequence within the step.
  double share = 1;            ///< Share of the step's valid items, for router losses.
  at::Tensor token_mask = {};  ///< nn::ModelInputs::token_mask of this rank's positions, on the device.
};

/// State of the current step, shared by the stages of a rank. A model that is whole is one stage.
struct StageStep {
  std::vector<Microbatch> microbatches;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t valid = 0;            ///< Valid items of the step.
  at::Tensor valid_input = {};  ///< In a recorded step the same number, on the device; each replay has its own.
  nn::RouterLossWeights router_losses = {};
  StepSums sums;  ///< Filled by the last stage.
};

/// Runs a stage of a model for a task, and holds the activations of each micro-batch between forward and backward.
/// Sends hidden states to the next stage, if there is one. In an MoE model it also sends the accumulated counts of the
/// router losses; their totals return with the gradients (nn::RouterLosses::packed). With a teacher it sends the
/// teacher's hidden states, and the distance of both models' layers so far.
class ModelStage : public pipeline::StageRunner {
 public:
  struct Parts {
    nn::Model& model;  ///< With several stages, a pipeline::ModuleSupportsPipelining.
    pipeline::PipelineStageInfo info;
    const TrainTask& task;
    shard::FullySharded* sharded = nullptr;
    int64_t num_experts = 0;  ///< Experts of the whole model's largest MoE layer; 0 without experts.
    mesh::DistributedContext* mesh = nullptr;
  };
  explicit ModelStage(Parts parts);

  /// Begins a step. `step` must outlive the step's actions.
  void begin(StageStep& step);

  pipeline::TensorDict input_specs(int64_t microbatch) const override;
  pipeline::TensorDict output_specs(int64_t microbatch) const override;
  pipeline::TensorDict gradient_specs(int64_t microbatch) const override;
  pipeline::TensorDict forward(int64_t microbatch, pipeline::TensorDict inputs) override;
  pipeline::TensorDict backward(int64_t microbatch, pipeline::TensorDict output_gradients, bool weights_later) override;
  void backward_weight(int64_t microbatch) override;

 private:
  // The state that backward needs from a forward.
  struct Kept {
    pipeline::TensorDict inputs = {};
    torch::autograd::edge_list roots = {};
    std::vector<std::string> root_names = {};
    at::Tensor one = {};  // gradient of the loss
    nn::RouterLosses::Forward routers = {};
    std::shared_ptr<ops::WeightGradients> weights = {};
  };
  nn::ModelInputs inputs_of(const Batch& batch, const pipeline::TensorDict& received) const;
  void keep_outputs(const nn::ModelOutputs& outputs, Kept& kept, pipeline::TensorDict& sent) const;
  void one_done();
  pipeline::TensorDict with_others(pipeline::TensorDict specs, const pipeline::TensorDict& of_teacher) const;

  Parts parts_;
  const pipeline::ModuleSupportsPipelining* shapes_;  // the model's
  nn::RouterLosses counts_;                           // used if the model has none
  nn::RouterLosses& routers_;
  TeacherStage* teacher_;  // null without one
  StageStep* step_ = nullptr;
  std::map<int64_t, Kept> kept_;  // by micro-batch
  int64_t done_ = 0;              // micro-batches with complete gradients
};

}  // namespace lehr::train
