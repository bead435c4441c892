// What is learned: how a batch becomes a model's inputs, and its outputs a loss.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lehr/nn/model.h"
#include "lehr/pipeline/stage.h"

namespace lehr::train {

/// Named tensors whose first dimension is the row: what a loader gives and a task understands.
using Batch = pipeline::TensorDict;

/// One kind of training. Implement it for a task of one's own; the trainer needs nothing else.
///
/// A loss is a sum over valid items (tokens with a label, labelled rows). The trainer divides by the number of valid
/// items of the whole optimizer step, over all its batches and ranks, so that how a step is cut into batches changes
/// nothing.
class TrainTask {
 public:
  virtual ~TrainTask() = default;
  /// The model's inputs for a batch that is on the model's device already.
  virtual nn::ModelInputs build_forward_inputs(const Batch& batch) const = 0;
  /// Number of valid items of a batch; called on the CPU, before the forward.
  virtual int64_t count_valid(const Batch& batch) const = 0;
  /// Sum of the loss over the valid items, a scalar that backward starts from. In a validation of a model in several
  /// pipeline stages, outputs are what the head gives: logps, scores, embeddings; not hidden states.
  virtual at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const = 0;
  /// Further sums over valid items, one number each, reported divided by the number of valid items ("accuracy").
  virtual std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& /*outputs*/, const Batch& /*batch*/) const {
    return {};
  }
};

/// Next-token prediction over packed text. Batches have input_ids, labels, position_ids and document_ids, (B, T) each.
class CausalLMTask : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
};

/// A label a row; reports 'accuracy'. Batches have input_ids, attention_mask, pooling_mask (B, T) and labels (B).
class ClassificationTask : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;

 private:
  static at::Tensor pooled_labels(const Batch& batch);
};

}  // namespace lehr::train
