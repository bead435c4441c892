// The interface between the executor of a schedule and the stages of a rank.
#pragma once

#include "lehr/pipeline/stage.h"

namespace lehr::pipeline {

/// The computations of one stage. The executor calls, for every micro-batch and in this order: forward; in training
/// backward; and, if weight gradients were deferred, backward_weight. Micro-batches may alternate in any order.
///
/// Tensors are passed between two stages forward (hidden states), and backward (their gradients) under the same names.
class StageRunner {
 public:
  virtual ~StageRunner() = default;
  /// Return the tensors that the stage receives from the previous stage, and those that it passes to the next one, for
  /// one micro-batch, on the meta device. Called only if there is such a stage.
  virtual TensorDict input_specs(int64_t microbatch) const = 0;
  virtual TensorDict output_specs(int64_t microbatch) const = 0;
  /// Returns the gradients that the stage receives from the next one: by default, of all outputs.
  virtual TensorDict gradient_specs(int64_t microbatch) const { return output_specs(microbatch); }
  /// Computes a micro-batch. The first stage gets no inputs; the executor drops the outputs of the last stage.
  virtual TensorDict forward(int64_t microbatch, TensorDict inputs) = 0;
  /// Takes the gradients of forward's outputs (none on the last stage) and returns those of its inputs. With
  /// `weights_later`, weight gradients are deferred to backward_weight.
  virtual TensorDict backward(int64_t microbatch, TensorDict output_gradients, bool weights_later) = 0;
  /// Computes the deferred weight gradients (wgrad) of a micro-batch.
  virtual void backward_weight(int64_t microbatch) = 0;
};

}  // namespace lehr::pipeline
