// Pipeline stages of a model: their position and layers, and the interface of a model that can be split into stages.
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
  std::vector<int64_t> layers_by_stage = {};  ///< Numbers of layers that a run has chosen; empty: spread evenly.

  bool is_current_stage_first() const { return current_stage == 0; }
  bool is_current_stage_last() const { return current_stage == num_stages - 1; }
};

/// Tensors by the names of a model's forward arguments or results.
using TensorDict = std::map<std::string, at::Tensor>;

/// A model that can infer the tensors between its stages before any computation. The returned tensors are on the meta
/// device: only shapes and dtypes count.
class ModuleSupportsPipelining {
 public:
  virtual ~ModuleSupportsPipelining() = default;
  /// Returns the inputs of this stage for one of `n_microbatches` equal parts of `inputs` (which holds "input_ids" (B,
  /// T)).
  virtual TensorDict infer_stage_inputs_from_pipeline_inputs(
      const TensorDict& inputs, int64_t n_microbatches) const = 0;
  /// Returns the outputs of this stage for one micro-batch: those sent to the next stage, or the results of the last
  /// one.
  virtual TensorDict infer_stage_outputs_from_pipeline_inputs(
      const TensorDict& inputs, int64_t n_microbatches) const = 0;
};

/// Returns the layers [first, second) of a stage. Virtual layers stand for the cost of the modules before the first
/// layer (embeddings) and after the last one (norm, head). The total is spread evenly; earlier stages take the
/// remainder. If `stage.layers_by_stage` is set, it alone decides. Throws a usage error if a stage would have no layer,
/// or if layers_by_stage does not name all layers on all stages.
std::pair<int64_t, int64_t> distribute_layers_for_pipeline_stage(
    int64_t num_layers,
    int64_t num_virtual_layers_pre,
    int64_t num_virtual_layers_post,
    const PipelineStageInfo& stage);

}  // namespace lehr::pipeline
