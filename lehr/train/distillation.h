// Distillation of a run: its teacher, and the task that compares the model with the teacher.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lehr/mesh/distributed_context.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"
#include "lehr/train/teacher.h"

namespace lehr::train {

/// Opens the teacher of [distillation] for a student of this shape, without reading weights; nullopt if there is none.
/// Throws usage errors that name the key for a folder without a model, and for a teacher that cannot teach the student.
std::optional<pretrained::ModelFolder> open_teacher(
    const TrainConfig& config, const descriptor::ModelFamilies& families, const descriptor::ModelArgs& student);

/// Returns the bytes that the teacher adds to a rank of a run: its weights, or its shards and the units unsharded at a
/// time, and the results of a batch that stay until backward has read them. In a pipeline, of the rank with the most:
/// each is taken to have both tables, of embeddings and head. `context` is null on one device.
int64_t teacher_bytes(
    const TrainConfig& config, const descriptor::ModelArgs& teacher, const mesh::DistributedContext* context = nullptr);

/// Returns "DIR (llama): 1.2 M parameters, 2.5 MiB in a step", for the report at the start.
std::string describe_teacher(
    const TrainConfig& config, const pretrained::ModelFolder& teacher, const mesh::DistributedContext* context);

/// A task of causal language models with the loss of [distillation] instead of its own: ModelStage runs its teacher.
/// Reports the means 'kl', 'ce' (cross-entropy with the labels), 'agreement' (of the most likely token) and, if it is
/// computed, 'cosine' (the distance).
class DistillationTask : public TrainTask {
 public:
  /// `stages` are the teacher's beside those of the model that this rank has, by number. `task` must outlive this
  /// object.
  DistillationTask(const TrainTask& task, const DistillationConfig& config, std::map<int64_t, TeacherStage> stages);
  /// With a whole teacher on one device.
  DistillationTask(const TrainTask& task, const DistillationConfig& config, std::shared_ptr<nn::Model> teacher);

  nn::ModelInputs build_forward_inputs(const Batch& batch) const override { return task_.build_forward_inputs(batch); }
  TeacherStage* teacher_of_stage(int64_t stage) const override { return &stages_.at(stage); }
  int64_t count_valid(const Batch& batch) const override { return task_.count_valid(batch); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;

 private:
  const TrainTask& task_;
  mutable std::map<int64_t, TeacherStage> stages_;  // they keep the weight of a whole teacher's head
  double cosine_weight_;
};

}  // namespace lehr::train
