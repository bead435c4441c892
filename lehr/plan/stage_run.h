// One stage of a run, alone: built as a trainer builds it, with made-up rows in the place of data and of the stages
// beside it.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "lehr/mesh/fake_transport.h"
#include "lehr/optim/optimizer.h"
#include "lehr/plan/measure_stage.h"
#include "lehr/train/model_stage.h"
#include "lehr/train/precision.h"
#include "lehr/train/ranks.h"
#include "lehr/train/stage_copies.h"
#include "lehr/train/stage_layout.h"

namespace lehr::plan {

/// The actions of a stage on this rank. On meta an OnMeta (base/on_meta.h) must live meanwhile.
class StageRun {
 public:
  /// Builds the stage on meta. References must outlive the object; `transport` is null for one device.
  StageRun(
      const train::TrainConfig& config,
      const train::TrainSpec& spec,
      const descriptor::ModelArgs& args,
      const StagePlace& place,
      mesh::Transport* transport);
  ~StageRun();
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  /// Gives parameters their memory, on meta or the CPU, and makes a microbatch.
  void allocate(at::Device device);
  nn::Model& model() { return *model_; }
  /// Null on one device.
  shard::FullySharded* sharded() { return sharded_ ? &*sharded_ : nullptr; }
  const train::Batch& batch() const { return batch_; }
  /// What is trained of the whole model.
  const std::vector<optim::ParameterInfo>& trained() const { return trained_; }
  /// Bytes of what goes to the next stage.
  int64_t boundary_bytes() const;

  /// @name A step, as train::Pipeline and train::TrainStep do it
  /// @{
  void begin_step(int64_t microbatches);
  void forward(int64_t microbatch);
  void backward(int64_t microbatch);
  void backward_input(int64_t microbatch);
  void backward_weight(int64_t microbatch);
  /// After the last microbatch: sums over replicas, gradients of tied tables and their new values.
  void finish_step();
  /// Whether gradients stay whole until the last microbatch of a step.
  bool sums_once_a_step() const { return sharded_ && !config_.parallelism.fsdp_reduce_each_microbatch; }
  void clear_gradients();
  /// @}

 private:
  bool staged() const { return info_.num_stages > 1; }
  void make_batch(at::Device device);
  pipeline::TensorDict made_like(const pipeline::TensorDict& specs) const;
  void collect();

  const train::TrainConfig& config_;
  int64_t vocab_size_;
  pipeline::PipelineStageInfo info_;
  bool copies_travel_;  // tied tables are on two ranks
  train::Ranks ranks_;
  std::unique_ptr<train::TrainTask> task_;
  std::shared_ptr<nn::Model> model_;
  std::vector<optim::ParameterInfo> trained_;
  std::optional<shard::FullySharded> sharded_;
  std::unique_ptr<train::MixedPrecision> precision_;
  std::unique_ptr<train::StageCopies> copies_;
  std::unique_ptr<train::ModelStage> stage_;
  train::Batch batch_;
  train::StageStep step_;
  pipeline::TensorDict comes_, goes_;  // shapes and types
};

/// What measure_stage gives, of a run on `device`: on the CPU with memory and numbers, for comparison; communication is
/// what `seen` has got from a fake transport by then.
StageMeasurement measure_run(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place,
    at::Device device,
    mesh::Transport* transport,
    const std::vector<mesh::FakeCollective>& seen = {});

}  // namespace lehr::plan
