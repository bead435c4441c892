// What the executor of a schedule needs of the stages that a rank holds.
#pragma once

#include "lehr/pipeline/stage.h"

namespace lehr::pipeline {

/// One stage's computations. For every microbatch, in this order: forward, and in training backward and, if its
/// weights' gradients were left for later, backward_weight. Different microbatches come in any order.
///
/// Between two stages, tensors of the same names, shapes and types flow forward (hidden states) and backward (their
/// gradients).
class StageRunner {
 public:
  virtual ~StageRunner() = default;
  /// What the stage receives from the one before, and what it gives to the next, for one microbatch; on meta. Only
  /// asked for where there is such a stage.
  virtual TensorDict input_specs(int64_t microbatch) const = 0;
  virtual TensorDict output_specs(int64_t microbatch) const = 0;
  /// Computes a microbatch. The first stage gets no inputs; what the last one returns is dropped.
  virtual TensorDict forward(int64_t microbatch, TensorDict inputs) = 0;
  /// Takes the gradients of what forward returned (none on the last stage) and gives those of what it took.
  virtual TensorDict backward(int64_t microbatch, TensorDict output_gradients, bool weights_later) = 0;
  /// The other half of a backward that left the weights for later.
  virtual void backward_weight(int64_t microbatch) = 0;
};

}  // namespace lehr::pipeline
