// Where a piece of a model stands in a pipeline, and what a model must tell to be split over one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::pipeline {

/// The stage that an instance of a model is built for.
struct PipelineStageInfo {
  int64_t current_stage = 0;
  int64_t num_stages = 1;
  std::vector<int64_t> layers_by_stage = {};  ///< Where a run has chosen them; empty: spread evenly.

  bool is_current_stage_first() const { return current_stage == 0; }
  bool is_current_stage_last() const { return current_stage == num_stages - 1; }
};

/// Tensors by the names of a model's forward arguments or results.
using TensorDict = std::map<std::string, at::Tensor>;

/// A model that can say what flows between its stages before anything is computed. The tensors returned are on meta:
/// only shapes and types count.
class ModuleSupportsPipelining {
 public:
  virtual ~ModuleSupportsPipelining() = default;
  /// What this stage receives for one of `n_microbatches` equal parts of `inputs` (which holds "input_ids" (B, T)).
  virtual TensorDict infer_stage_inputs_from_pipeline_inputs(
      const TensorDict& inputs, int64_t n_microbatches) const = 0;
  /// What this stage sends or, as the last one, gives back, for one microbatch.
  virtual TensorDict infer_stage_outputs_from_pipeline_inputs(
      const TensorDict& inputs, int64_t n_microbatches) const = 0;
};

/// The layers [first, second) of a stage. Virtual layers stand for the cost of what comes before the first layer
/// (embeddings) and after the last one (norm, head). The total is spread evenly, earlier stages taking the remainder.
/// Where `stage.layers_by_stage` has been chosen, it counts alone. Throws a usage error if a stage would hold no layer,
/// or if those chosen are not all layers on all stages.
std::pair<int64_t, int64_t> distribute_layers_for_pipeline_stage(
    int64_t num_layers,
    int64_t num_virtual_layers_pre,
    int64_t num_virtual_layers_post,
    const PipelineStageInfo& stage);

}  // namespace lehr::pipeline
