// A step of a model whose stages are on several ranks.
#pragma once

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
#include "lehr/train/step.h"

namespace lehr::train {

/// Runs this rank's part of the program of a step.
class Pipeline {
 public:
  struct Parts {
    const pipeline::Program& program;  ///< Of every step.
    int64_t microbatch_rows = 1;
    const TrainTask& task;
    const Ranks& ranks;
    StagedModel& model;
    std::vector<shard::FullySharded>& sharded;  ///< Of the model's stages, in order.
  };
  /// References must outlive the object, but for the program's. `layout` is read now.
  Pipeline(const StageLayout& layout, const Parts& parts);

  /// Forward and backward of the rows of `batch`, of which the first is row `first_row` of the step. `step` says all
  /// but the microbatches; gets the sums, which are those of the last stage's ranks.
  void run(const Batch& batch, int64_t first_row, at::Device device, StageStep& step);

  /// Numbers of the last stage's rank, on all ranks of the pipeline.
  void share(std::map<std::string, double>& numbers) const;
  /// The counts of all mixtures of the model, (mixtures, E), from those of this rank's stages; undefined without
  /// experts.
  at::Tensor all_mixtures(const at::Tensor& tokens_per_expert) const;
  const StageCopies& copies() const { return copies_; }

 private:
  const mesh::Group& pp() const;

  Parts parts_;
  pipeline::Program program_;
  bool bound_sends_;
  std::vector<int64_t> mixtures_;  // by stage
  int64_t num_experts_;
  StageCopies copies_;
  std::map<int64_t, std::unique_ptr<ModelStage>> stages_;
};

}  // namespace lehr::train
