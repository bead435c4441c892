// The pipeline stages of a model that one rank holds, as one model.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/nn/model.h"
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/stage.h"

namespace lehr::train {

/// A single model for listing parameters, saving and inference: names are those of the whole model, and forward runs
/// through the stages of all ranks of the pipeline, which must all call it.
class StagedModel : public nn::Model {
 public:
  struct Stage {
    int64_t number;
    std::shared_ptr<nn::Model> model;
  };
  /// `stages` are those of this rank, ascending; `rank_of_stage` has the ranks of all stages along `pp`, which must
  /// outlive the model.
  StagedModel(std::vector<Stage> stages, std::vector<int64_t> rank_of_stage, const mesh::Group& pp);

  bool names_children() const override { return false; }
  const std::vector<Stage>& stages() const { return stages_; }

  /// Runs forward without gradients. The head's outputs are returned on all ranks. The batch is split into
  /// micro-batches, except if there are caches. The final hidden states, for `logits`, are returned on the ranks of the
  /// last stage; if there are caches, on all ranks.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override;
  /// Returns the same result on all ranks. The states are needed on the ranks of the last stage.
  at::Tensor logits(const at::Tensor& final_hidden_states) override;
  at::ScalarType output_dtype() const override { return stages_.back().model->output_dtype(); }
  int64_t num_local_layers() const override;
  at::Tensor moe_tokens_per_expert() override;
  void reset_moe_stats() override;
  /// Those of the last stage, if this rank has it.
  int64_t num_mtp_modules() const override { return stages_.back().model->num_mtp_modules(); }

 private:
  class Runner;
  int64_t last_rank() const { return rank_of_stage_.back(); }
  bool has_last() const { return pp_.rank() == last_rank(); }
  void from_last(at::Tensor& tensor, at::Device device) const;

  std::vector<Stage> stages_;
  std::vector<int64_t> rank_of_stage_;
  const mesh::Group& pp_;
  at::Device device_ = at::kCPU;  // of the last forward
  struct ForwardProgram {
    pipeline::Program program;
    bool bound_sends;
  };
  std::map<int64_t, ForwardProgram> programs_;  // by number of micro-batches
};

}  // namespace lehr::train
