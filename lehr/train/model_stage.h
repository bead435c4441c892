// One stage of a model under a pipeline schedule: what it keeps of each microbatch between forward and backward.
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

/// Rows that go through the pipeline together.
struct Microbatch {
  Batch batch;            ///< This rank's positions of the rows, on the device.
  int64_t first_row = 0;  ///< Of the step.
  double share = 1;       ///< Of the step's valid items.
};

/// What the stages of a rank must know of the step under way.
struct StageStep {
  std::vector<Microbatch> microbatches;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t valid = 0;  ///< Items of the step.
  nn::RouterLossWeights router_losses = {};
  StepSums sums;  ///< The last stage's.
};

/// Runs a stage of a model for a task. Hidden states flow to the next stage; and, in a model with experts, what the
/// router losses have counted so far, of which the whole sums come back with the gradients (nn::RouterLosses::packed).
class ModelStage : public pipeline::StageRunner {
 public:
  struct Parts {
    nn::Model& model;  ///< A pipeline::ModuleSupportsPipelining where there are several stages.
    pipeline::PipelineStageInfo info;
    const TrainTask& task;
    shard::FullySharded* sharded = nullptr;
    int64_t num_experts = 0;  ///< Of the whole model; 0 without.
    mesh::DistributedContext* mesh = nullptr;
  };
  explicit ModelStage(Parts parts);

  /// Begins a step. `step` must live as long as actions of it run.
  void begin(StageStep& step);

  pipeline::TensorDict input_specs(int64_t microbatch) const override;
  pipeline::TensorDict output_specs(int64_t microbatch) const override;
  pipeline::TensorDict forward(int64_t microbatch, pipeline::TensorDict inputs) override;
  pipeline::TensorDict backward(int64_t microbatch, pipeline::TensorDict output_gradients, bool weights_later) override;
  void backward_weight(int64_t microbatch) override;

 private:
  // What backward needs of a forward.
  struct Kept {
    pipeline::TensorDict inputs = {};
    torch::autograd::edge_list roots = {};
    std::vector<std::string> root_names = {};
    at::Tensor one = {};  // the loss's own gradient
    nn::RouterLosses::Forward routers = {};
    std::shared_ptr<ops::WeightGradients> weights = {};
  };
  nn::ModelInputs inputs_of(const Batch& batch, const pipeline::TensorDict& received) const;
  void one_done();
  pipeline::TensorDict with_counts(pipeline::TensorDict specs) const;

  Parts parts_;
  const pipeline::ModuleSupportsPipelining* shapes_;  // the model's
  nn::RouterLosses counts_;                           // in the place of the model's, where it has none
  nn::RouterLosses& routers_;
  StageStep* step_ = nullptr;
  std::map<int64_t, Kept> kept_;  // by microbatch
  int64_t done_ = 0;              // microbatches whose gradients are complete
};

}  // namespace lehr::train
