// Training tasks: conversion of a batch to a model's inputs, and of its outputs to a loss.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lehr/nn/model.h"
#include "lehr/pipeline/stage.h"

namespace lehr::mesh {
class DistributedContext;
}

namespace lehr::train {

class TeacherStage;

/// Named tensors whose first dimension is the sequence; the interface between loader and task.
using Batch = pipeline::TensorDict;

/// Returns the sequences [first, first + count) of every tensor of a batch.
Batch rows_of(const Batch& batch, int64_t first, int64_t count);
/// Returns the batch with all tensors on `device`.
Batch to_device(const Batch& batch, at::Device device);

/// A training task. Implement it for a custom task; the trainer needs nothing else.
///
/// A loss is a sum over valid items (tokens with a label, labelled sequences). The trainer divides by the number of
/// valid items of the whole optimizer step, over all its batches and ranks, so that the result does not depend on the
/// micro-batch size.
class TrainTask {
 public:
  virtual ~TrainTask() = default;
  /// Returns the model's inputs for a batch that is already on the model's device.
  virtual nn::ModelInputs build_forward_inputs(const Batch& batch) const = 0;
  /// Returns the number of valid items of a batch of whole sequences; called on the CPU, before the forward.
  virtual int64_t count_valid(const Batch& batch) const = 0;
  /// Returns the sum of the loss over the valid items, a scalar on which backward is called. In a validation of a model
  /// with several pipeline stages, `outputs` has only the head's outputs: logps, scores, embeddings; not hidden states.
  virtual at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const = 0;
  /// Returns additional sums over valid items, scalars that are reported divided by the number of valid items
  /// ("accuracy").
  virtual std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& /*outputs*/, const Batch& /*batch*/) const {
    return {};
  }
  /// Called once, before all other functions, if the task runs on several ranks; `mesh` outlives it. All ranks call it.
  virtual void use_mesh(mesh::DistributedContext& /*mesh*/) {}
  /// True if the loss of a sequence depends on the other sequences of its micro-batch, on all data-parallel ranks.
  /// Their sequences of a micro-batch are then consecutive in the step (data::PairsLoader), and compute_loss
  /// communicates.
  virtual bool couples_sequences() const { return false; }
  /// Returns the part of a frozen teacher that runs before a stage of the model, on the same inputs; null without one.
  virtual TeacherStage* teacher_of_stage(int64_t /*stage*/) const { return nullptr; }
};

/// Next-token prediction over packed text. Batches have input_ids, labels, position_ids and document_ids, (B, T) each,
/// and optionally sequence_ends (ops::AttentionMask). With multi-token prediction they also have the tokens of
/// with_future_tokens (train/future_tokens.h): the loss then has the gradient of `mtp_loss_coef` times the mean loss of
/// the model's modules as well, but the value of the main model's loss alone; 'mtp_loss' reports the other.
class CausalLMTask : public TrainTask {
 public:
  explicit CausalLMTask(double mtp_loss_coef = 0) : mtp_loss_coef_(mtp_loss_coef) {}

  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;

 private:
  double mtp_loss_coef_;
};

/// One label per sequence; reports 'accuracy'. Batches have input_ids, attention_mask, pooling_mask (B, T), labels (B),
/// and optionally position_ids (B, T) and sequence_ends (ops::AttentionMask). On a rank of context parallelism they
/// have its positions, but all labels: it scores the sequences whose pooled position it has.
class ClassificationTask : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;

 private:
  static at::Tensor pooled_labels(const Batch& batch);
};

/// A label for some of the tokens; reports 'accuracy'. Batches have input_ids, position_ids, attention_mask and labels
/// (-100 for other tokens), (B, T) each, and optionally sequence_ends (ops::AttentionMask).
class TokenClassificationTask : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;
};

}  // namespace lehr::train
