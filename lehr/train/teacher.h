// A frozen teacher beside the stages of a model.
#pragma once

#include <cstdint>
#include <memory>

#include "lehr/nn/model.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"

namespace lehr::shard {
class FullySharded;
}

namespace lehr::train {

/// The part of a frozen teacher beside one pipeline stage of a model, or the whole of it beside a whole model.
///
/// It runs before the stage, on the same inputs and the hidden states of the teacher's stage before, without gradients.
/// So the stage compares its layers with the teacher's where both are, and only the last one needs the teacher's head.
class TeacherStage {
 public:
  /// The place of the stage's layers in the teacher.
  struct Layers {
    int64_t first = 0;
    int64_t all = 0;
  };
  /// `model` is in eval mode when it runs, and never changes. `sharded` is the handle of its shards, which must outlive
  /// this object; null for a model that is whole or unsharded for good.
  TeacherStage(
      std::shared_ptr<nn::Model> model,
      shard::FullySharded* sharded,
      bool is_last,
      Layers layers,
      const DistillationConfig& config);

  /// Runs the stage's layers on `inputs`, which are those of the model's stage, and sets inputs.distillation.
  /// `received` are the results of the teacher's stage before, empty for the first stage, and `earlier_distance` that
  /// of the model's (nn::DistillationTargets), undefined for the first stage. Returns the teacher's hidden states and
  /// what else its next stage needs; empty on the last one.
  pipeline::TensorDict run(nn::ModelInputs& inputs, pipeline::TensorDict received, const at::Tensor& earlier_distance);
  /// Return what the teacher's stage receives and sends, on meta, of which the batch has this rank's part; empty before
  /// the first stage and after the last one.
  pipeline::TensorDict input_specs(const Batch& batch) const;
  pipeline::TensorDict output_specs(const Batch& batch) const;
  /// Whether the layers of both are compared, so that stages pass on the distance so far.
  bool compares_layers() const { return compares_layers_; }

 private:
  std::shared_ptr<nn::Model> model_;
  shard::FullySharded* sharded_;
  bool is_last_;
  Layers layers_;
  bool compares_layers_;
  ops::LinearKlOptions loss_;
  at::Tensor head_weight_;  // (V, hidden size), of a model that is whole
};

}  // namespace lehr::train
