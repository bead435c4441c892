// Stages of any number of layers, extrapolated from a few measured ones, so that a search over meshes stays affordable.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

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

/// The stages of a model for one layout of its layers (tp, cp, ep). Measures stages of one and two layers with one
/// micro-batch size, and extrapolates linearly in the number of layers and in the number of ranks that share the
/// parameters.
class StagePieces {
 public:
  /// Measures with the tensor, context and expert degrees, the activation_checkpoint and fsdp_reduce_each_microbatch of
  /// `config`, with the policy all_but_last and micro-batches of training.local_batch_size sequences; other degrees of
  /// `config` are ignored. Layers that differ from each other count as the model's middle layers. Throws usage errors
  /// if the model cannot be laid out so.
  StagePieces(const train::TrainConfig& config, const train::TrainSpec& spec);

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
  int64_t shard_ranks_ = 1;  // of the measured stages
  double expert_visits_ = 0;
  StageMeasurement first_, middle_, two_, last_;
};

}  // namespace lehr::plan
