// The choice of activation checkpointing for a run: activation_checkpoint.mode = "auto".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lehr/train/config.h"

namespace lehr::train {

/// A training step as predicted before a run.
struct StepForecast {
  int64_t peak = 0;        ///< Peak bytes of tensors, of the rank that has most.
  int64_t copied = 0;      ///< More bytes from the first save on, for copies that are written and local checkpoints; 0
                           ///< without checkpoints.
  double extra_flops = 0;  ///< Recomputed FLOPs, relative to those of a step that keeps all activations.

  int64_t with_copy() const;
};

/// A way of activation checkpointing.
struct RecomputeCandidate {
  std::string name;  ///< Mode "none" or "full", or the selective_ac_option of mode "selective".
  StepForecast step = {};

  ActivationCheckpointConfig config() const;
};

/// The candidates for a run, and the chosen one.
struct RecomputeChoice {
  std::vector<RecomputeCandidate> candidates = {};  ///< Fewest extra FLOPs first.
  size_t chosen = 0;
  int64_t granted = 0;  ///< Bytes.
  bool fits = false;

  const RecomputeCandidate& best() const { return candidates[chosen]; }
  /// Returns 'none: 2.8 GiB in a step, of 20.1 GiB granted; "op 2": 2.7 GiB, 7 % more FLOPs; ...': the choice first,
  /// and then the costs of the others.
  std::string describe() const;
};

/// The candidates' names by their cost in theory: "none", "op 2", "2", "op", "full".
const std::vector<std::string>& recompute_candidates();

/// Chooses among the recompute_candidates() with their forecasts for `config`: the one with the fewest extra FLOPs
/// whose memory is at most `granted`. If none fits, the one with the fewest FLOPs among those that need the least
/// memory, so that nothing is recomputed without saving memory.
RecomputeChoice choose_recompute(
    const TrainConfig& config, int64_t granted, const std::function<StepForecast(const TrainConfig& config)>& forecast);

}  // namespace lehr::train
