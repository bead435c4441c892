// Local checkpoints: copies of the state of a run in a folder of its machine, by default in shared memory, which are
// cheap enough for every step and outlive the processes of the run. Megatron calls them non-persistent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// The local checkpoints of one run, of which only the newest is kept. All ranks construct one and call its functions
/// together, in the same order. The folder is named after the user and job.dump_folder; a file in both of them ties
/// them together, so that a new run in an old path never continues from the state of an earlier one.
class LocalCheckpoints {
 public:
  /// Creates the folder, with access for this user only. `run` is the folder of the run's other checkpoints. Throws a
  /// usage error if the folder cannot be created, belongs to somebody else, or is not visible to all ranks because they
  /// are on several machines.
  LocalCheckpoints(
      const CheckpointConfig& config,
      const std::filesystem::path& run,
      std::shared_ptr<state::Coordinator> coordinator);
  ~LocalCheckpoints();

  /// Returns the newest complete checkpoint if it is newer than step `above` and undamaged, else removes all. Adds a
  /// warning about a damaged one on the main rank.
  std::optional<state::Checkpoint> find(int64_t above, std::vector<std::string>& warnings);

  /// Throws a usage error if the folder has no room for two checkpoints of `bytes` (one is kept while the next is
  /// written) or, if it is in memory, if the machine has none for them and the copy that they are written from.
  void require_space(int64_t bytes);

  /// As AsyncCheckpointer::save.
  void save(const state::CheckpointContents& contents) { writer_->save(contents); }
  /// Waits until no save is running. Called before an update, it ensures that a failure costs at most one step.
  void wait() { writer_->wait(); }
  /// Returns and clears the error of a save that is no longer running, if there was one.
  std::optional<std::string> take_failure();

  /// Removes the folder, when no save is running: the run's other checkpoints have a state that is as new.
  void remove();

 private:
  const CheckpointConfig& config_;
  std::shared_ptr<state::Coordinator> coordinator_;
  std::unique_ptr<state::CheckpointStore> store_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;
};

}  // namespace lehr::train
