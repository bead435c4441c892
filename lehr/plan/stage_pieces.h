// Stages of any number of layers, put together from a few that were measured: what a search over meshes can afford.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lehr/plan/measure_stage.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// A stage by what it consists of.
struct StageShape {
  int64_t layers = 1;
  bool first = true;
  bool last = true;
  auto operator<=>(const StageShape&) const = default;
};

/// The stages of a model for one layout of its layers (tp, cp, ep), by measuring stages of one and two layers with one
/// row a microbatch and following straight lines: in layers, in rows, and in the ranks that share weights.
class StagePieces {
 public:
  /// Measures with the tensor, context and expert degrees, and activation_checkpoint of `config`, under the
  /// policy all_but_last, whatever its other degrees, for microbatches of
  /// training.local_batch_size rows. Layers that differ from each other count as the model's middle
  /// ones. Throws usage errors where the model cannot be laid out so.
  StagePieces(const train::TrainConfig& config, const train::TrainSpec& spec);

  /// A stage in a mesh whose weights are shared by `shard_ranks` (dp_shard x cp) with `replicas` copies, for
  /// microbatches of `rows`.
  StageMeasurement stage(const StageShape& shape, int64_t shard_ranks, int64_t replicas) const;

  /// `stage`, measured with the policy all_but_last, under another one; `pipelined`: in a pipeline of several ranks,
  /// where weights that stay gathered do so for a whole step.
  static void change_policy(StageMeasurement& stage, shard::ReshardPolicy policy, bool pipelined);

  /// Half of each of two stages that differ in checkpointing: every second layer is checkpointed.
  static StageMeasurement half_and_half(const StageMeasurement& one, const StageMeasurement& other);

  /// Of the products of these stages' layers, what experts do.
  double expert_share() const { return expert_share_; }

 private:
  int64_t shard_ranks_ = 1;  // as measured
  double expert_share_ = 0;
  StageMeasurement first_, middle_, two_, last_;
};

}  // namespace lehr::plan
