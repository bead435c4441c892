// Stages of any number of layers, extrapolated from a few measured ones, so that a search over meshes stays affordable.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/plan/measure_stage.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// The composition of a stage.
struct StageShape {
  int64_t layers = 1;
  bool first = true;
  bool last = true;
  auto operator<=>(const StageShape&) const = default;
};

/// Returns the bytes that an all-gather of parameters copies: a read and a write of the whole parameters, and of this
/// rank's shards. (A cast of the shards from float32 reads as much again.)
int64_t bytes_of_copies(const Communication& gather);

/// Returns the number of layers before the first one with experts; 0 for a model without experts.
int64_t leading_dense_layers(const descriptor::ModelArgs& args);

/// The stages of a model for one layout of its layers (tp, cp, ep). Measures stages of one and two layers with one
/// micro-batch size, and extrapolates linearly in the number of layers and in the number of ranks that share the
/// parameters. Beyond two layers, peaks grow by what a layer keeps (or by its gradients): workspace stays.
class StagePieces {
 public:
  /// Measures with the tensor, context and expert degrees, the activation_checkpoint and fsdp_reduce_each_microbatch of
  /// `config`, with the policy all_but_last and micro-batches of training.local_batch_size sequences; other degrees of
  /// `config` are ignored. Of a model with dense layers before its MoE layers, middle and last stages have MoE layers
  /// only; other layers must be equal (require_equal_layers). Throws usage errors if the model cannot be laid out so.
  StagePieces(const train::TrainConfig& config, const train::TrainSpec& spec);

  /// Returns the numbers of layers of the models that are measured for a model with `args`.
  static std::vector<int64_t> measured_layers(const descriptor::ModelArgs& args);

  /// Returns a stage in a mesh whose parameters are sharded over `shard_ranks` (dp_shard x cp) with `replicas` copies.
  StageMeasurement stage(const StageShape& shape, int64_t shard_ranks, int64_t replicas) const;

  /// Converts `stage`, measured with the policy all_but_last, to another policy. `pipelined`: in a pipeline of several
  /// ranks, where parameters with the policy never stay unsharded for a whole step.
  static void change_policy(StageMeasurement& stage, shard::ReshardPolicy policy, bool pipelined);

  /// Returns the mean of two stages that differ in checkpointing: a stage that recomputes every second layer.
  static StageMeasurement mean_of(const StageMeasurement& one, const StageMeasurement& other);

  /// Returns the fraction of all tokens that one expert has.
  double expert_visits() const { return expert_visits_; }

 private:
  struct Stages {
    StageMeasurement first, middle, last;
  };
  StageMeasurement with_layers(const StageShape& shape) const;

  int64_t shard_ranks_ = 1;  // of the measured stages
  double expert_visits_ = 0;
  int64_t base_ = 2;  // layers of `base_stages_`
  Stages one_layer_, base_stages_;
  StageMeasurement layer_;  // the difference that a layer makes
};

}  // namespace lehr::plan
