// Execution of a training step whose stages are on several ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/pipeline/executor.h"
#include "lehr/train/model_stage.h"
#include "lehr/train/ranks.h"
#include "lehr/train/stage_copies.h"
#include "lehr/train/stage_layout.h"
#include "lehr/train/staged_model.h"

namespace lehr::train {

/// Runs this rank's part of a step's pipeline program.
class Pipeline {
 public:
  struct Parts {
    const pipeline::Program& program;  ///< The program of every step.
    const TrainTask& task;
    const Ranks& ranks;
    StagedModel& model;
    std::vector<shard::FullySharded>& sharded;  ///< The model's stages, in order.
    /// Called after each action, as in pipeline::ExecutorOptions.
    std::function<void(const pipeline::Action& action, double start, double end)> on_action = {};
  };
  /// References must outlive the object, except the program's. `layout` is only read here.
  Pipeline(const StageLayout& layout, const Parts& parts);

  /// Runs forward and backward of all micro-batches of `step`, whose sums it fills on the ranks of the last stage.
  void run(at::Device device, StageStep& step);
  /// The same for a step of one micro-batch, which goes through all stages in order. `Parts::on_action` is not called.
  void run_one(at::Device device, StageStep& step);

  /// Broadcasts the names of the last stage's rank to all ranks of the pipeline.
  void share_names(std::vector<std::string>& names) const;
  /// Gathers the counts of all MoE layers of the model, (MoE layers, E), from this rank's stages and the others;
  /// undefined without experts.
  at::Tensor all_moe_layers(const at::Tensor& tokens_per_expert) const;
  const StageCopies& copies() const { return copies_; }

 private:
  const mesh::Group& pp() const;
  void run_program(const pipeline::Program& program, const pipeline::ExecutorOptions& options, StageStep& step) const;

  Parts parts_;
  pipeline::Program program_;
  pipeline::Program program_of_one_;
  bool bound_sends_;
  std::vector<int64_t> moe_layers_;  // by stage
  int64_t num_experts_;
  StageCopies copies_;
  std::map<int64_t, std::unique_ptr<ModelStage>> stages_;
};

}  // namespace lehr::train
