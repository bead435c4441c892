// The settings that a run and the checkpoint it continues from must agree in, and those that may change on request.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/run_state.h"

namespace lehr::train {

/// Returns the state of a new run of `config` on data with that fingerprint. Its schedule_steps is 0: it follows from
/// the position that the run starts from.
RunState new_run_state(const TrainConfig& config, uint64_t data_fingerprint);

/// A run as its config describes it, to compare the state of a checkpoint with.
struct ConfiguredRun {
  RunState start;                               ///< Its state if it were new.
  std::vector<std::string> allow_changes = {};  ///< checkpoint.allow_changes
  bool reads_tokens = true;     ///< Sequences are cut from tokens; false: each is an example of its own.
  bool own_schedule = false;    ///< lr_scheduler.total_steps is set.
  bool ends_with_data = false;  ///< The data ends before training.steps.
  /// `start` of the same run with sequences of another length.
  std::function<RunState(int64_t seq_len)> with_seq_len = {};
};

/// Returns the sequence of the data of `now` that follows those that the run of `then` has read. As many sequences
/// count as read, whatever the batch size and the data; with another sequence length, as many tokens, rounded up to
/// whole sequences. Throws a usage error for a change that checkpoint.allow_changes does not name: it names the key,
/// the checkpoint's `folder`, the word to add, and the alternative, `otherwise`.
int64_t continued_data_position(
    const RunState& then, const ConfiguredRun& now, const std::filesystem::path& folder, const std::string& otherwise);

/// Returns the state of `now` when it resumes from the checkpoint `folder` with the state `then`. Throws a usage error
/// for another seed or optimizer, and for other changes of the data that checkpoint.allow_changes does not name.
RunState resumed_state(const RunState& then, const ConfiguredRun& now, const std::filesystem::path& folder);

/// Throws a usage error if the learning-rate schedule of `state`, which follows `then`, spans another number of steps,
/// unless checkpoint.allow_changes has "steps" or the number follows from an allowed change of data that ends.
void check_schedule_steps(
    const RunState& then, const RunState& state, const ConfiguredRun& now, const std::filesystem::path& folder);

/// Returns a sentence for each setting in which `state` differs from the state `then` that it follows, learning rates
/// included.
std::vector<std::string> describe_changes(const RunState& then, const RunState& state, const ConfiguredRun& now);

/// Throws a usage error that ends with `advice` unless `file`, the config.json of a checkpoint, describes the model
/// whose config.json is `now`: weights may fit a model that computes something else, for example with another
/// rope_theta. The file may have keys in a form of its own, so it is read and written as the family does.
void require_same_shape(
    const std::filesystem::path& file,
    const descriptor::ModelFamily& family,
    const Node& now,
    const std::string& advice);

}  // namespace lehr::train
