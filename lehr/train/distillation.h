// Distillation of a run: its teacher, and the task that compares the model with the teacher.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lehr/mesh/distributed_context.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"

namespace lehr::shard {
class FullySharded;
}

namespace lehr::train {

/// Opens the teacher of [distillation] for a student of this shape, without reading weights; nullopt if there is none.
/// Throws usage errors that name the key for a folder without a model, and for a teacher that cannot teach the student.
std::optional<pretrained::ModelFolder> open_teacher(
    const TrainConfig& config, const descriptor::ModelFamilies& families, const descriptor::ModelArgs& student);

/// Returns the bytes that the teacher adds to each rank of a run: its weights, or its shards and what is unsharded at a
/// time, and the results of a batch that stay until backward has read them. `context` is null on one device.
int64_t teacher_bytes(
    const TrainConfig& config, const descriptor::ModelArgs& teacher, const mesh::DistributedContext* context = nullptr);

/// Returns "DIR (llama): 1.2 M parameters, 2.5 MiB in a step", for the report at the start.
std::string describe_teacher(
    const TrainConfig& config, const pretrained::ModelFolder& teacher, const mesh::DistributedContext* context);

/// A task of causal language models with the loss of [distillation] instead of its own. It runs the teacher on the
/// inputs of each batch, without gradients. Reports the means 'kl', 'ce' (cross-entropy with the labels), 'agreement'
/// (of the most likely token) and, if it is computed, 'cosine' (the distance).
class DistillationTask : public TrainTask {
 public:
  /// `task` must outlive this object. The teacher is in eval mode, and never changes. `sharded` is the handle of its
  /// shards, which must outlive this object; null for a whole teacher.
  DistillationTask(
      const TrainTask& task,
      const DistillationConfig& config,
      std::shared_ptr<nn::Model> teacher,
      shard::FullySharded* sharded = nullptr);

  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override { return task_.count_valid(batch); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;

 private:
  const TrainTask& task_;
  std::shared_ptr<nn::Model> teacher_;
  shard::FullySharded* sharded_;
  at::Tensor head_weight_;  // (V, the teacher's hidden size), of a whole teacher
  ops::LinearKlOptions loss_;
  double cosine_weight_;
};

}  // namespace lehr::train
