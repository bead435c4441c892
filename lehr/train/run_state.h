// The state of a run besides its tensors: the file trainer.json of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"

namespace lehr::train {

/// The file of a checkpoint with its run's state.
constexpr const char* kRunStateFile = "trainer.json";

/// The state of a run. Random numbers are functions of the seed and the step, and the order of data is one of the seed
/// and the number of sequences read, so this is everything to restore besides tensors.
struct RunState {
  int64_t step = 0;        ///< Completed steps.
  int64_t num_tokens = 0;  ///< Tokens trained on, without padding.
  int64_t skipped = 0;     ///< Updates that were skipped because a value was not finite.
  /// Position in the data: the sequence of its order that the next step reads first.
  int64_t sequences_read = 0;
  /// Number of steps by which the position in the learning-rate schedule is ahead of `step`: 0 except in a run that
  /// took over some of another run's state (train/initial_load.h). Negative if only the step was taken over.
  int64_t schedule_ahead = 0;
  int64_t seed = 0;
  int64_t rows_per_step = 0;
  int64_t seq_len = 0;
  int64_t schedule_steps = 0;  ///< Steps that the learning-rate schedule spans; 0 in older checkpoints.
  std::string optimizer = {};  ///< Its name; empty in older checkpoints.
  /// optimizer.lr, and the learning rates of its param_groups; empty in older checkpoints.
  std::vector<double> learning_rates = {};
  /// Loss of the validation after `step`, with checkpoint.keep_best; unset if there was none.
  std::optional<double> validation_loss = {};
  /// The last losses that count for reliability.spike_factor, at most spike_window, oldest first; empty in older
  /// checkpoints.
  std::vector<double> recent_losses = {};
  std::string data_fingerprint = {};  ///< Identifies the data and its order; empty in older checkpoints.
  /// data.packing of text ("concat" or "whole"), of which the fingerprint knows only the number of sequences; empty for
  /// other data and in older checkpoints.
  std::string packing = {};
  std::string base_fingerprint = {};  ///< Identifies the base weights of adapters; empty without adapters.
  void fields(FieldVisitor& v);
};

/// Reads the state of a checkpoint, of this version or an older one. Throws a usage error that names the file.
RunState read_run_state(const std::filesystem::path& checkpoint);

}  // namespace lehr::train
