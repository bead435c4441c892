// One stage of a run in isolation: built as a trainer builds it, with synthetic batches and boundary tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "lehr/descriptor/model_args.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/optim/optimizer.h"
#include "lehr/plan/stage_measurement.h"
#include "lehr/train/config.h"
#include "lehr/train/model_stage.h"
#include "lehr/train/precision.h"
#include "lehr/train/ranks.h"
#include "lehr/train/stage_copies.h"
#include "lehr/train/stage_layout.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns `rows` sequences of training.seq_len tokens, for the config's task: each a single document, with a label for
/// every token.
train::Batch synthetic_batch(const train::TrainConfig& config, int64_t rows, int64_t vocab_size, at::Device device);

/// The actions of a stage on this rank. On the meta device an OnMeta (meter/on_meta.h) must be alive.
class StageRun {
 public:
  /// Builds the stage on the meta device. References must outlive the object; `transport` is null for one device.
  StageRun(
      const train::TrainConfig& config,
      const train::TrainSpec& spec,
      const descriptor::ModelArgs& args,
      const StagePlace& place,
      mesh::Transport* transport);
  ~StageRun();
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  /// Materializes parameters on `device` (meta or CPU), and creates a micro-batch.
  void allocate(at::Device device);
  nn::Model& model() { return *model_; }
  /// Null on one device.
  shard::FullySharded* sharded() { return sharded_ ? &*sharded_ : nullptr; }
  const train::Batch& batch() const { return batch_; }
  /// Null on one device.
  mesh::DistributedContext* context() const { return ranks_.context(); }
  /// Returns the trainable parameters of the whole model.
  const std::vector<optim::ParameterInfo>& trained() const { return trained_; }
  /// Returns the bytes of the tensors sent to the next stage.
  int64_t boundary_bytes() const;

  /// @name A step, in the order of train::Pipeline and train::TrainStep
  /// @{
  void begin_step(int64_t microbatches);
  void forward(int64_t microbatch);
  void backward(int64_t microbatch);
  void backward_input(int64_t microbatch);
  void backward_weight(int64_t microbatch);
  /// Call after the last micro-batch: reduces over replicas, and exchanges gradients and new values of tied tables.
  void finish_step();
  /// Returns whether gradients stay unreduced until the last micro-batch of a step.
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
  bool copies_on_two_ranks_;  // the copies of a tied table are on two ranks
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
  pipeline::TensorDict recv_specs_, send_specs_;  // specs of the stage's inputs and outputs
};

/// The collectives that a fake transport has seen so far.
struct SeenCollectives {
  std::vector<mesh::FakeCollective> all = {};
  /// Called when the collective of this number was started, or is waited for; may be empty.
  std::function<void(size_t number, bool waited)> observe = {};
};

/// Implements measure_stage on any `device`; on the CPU it runs with real memory and numbers, for comparison.
StageMeasurement measure_run(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place,
    at::Device device,
    mesh::Transport* transport,
    SeenCollectives& seen);

}  // namespace lehr::plan
