// Local checkpoints: copies of the state of a run in a folder of its machine, by default in shared memory, which are
// cheap enough for every step and outlive the processes of the run. Megatron calls them non-persistent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// The local checkpoints of one run, of which only the newest is kept. All ranks construct one and call its functions
/// together, in the same order. Their folder has a random name; a file beside the run's other checkpoints points to it.
class LocalCheckpoints {
 public:
  /// Returns the file that points to the folder: its path, and which folder of the run it belongs to, so that a copy of
  /// the run's folder does not count.
  static std::filesystem::path pointer_in(const std::filesystem::path& run);

  /// `run` is the folder of the run's other checkpoints. Throws a usage error if there are to be local checkpoints and
  /// no folder can be created for them, or a rank does not see it because the ranks are on several machines.
  LocalCheckpoints(
      const CheckpointConfig& config, std::filesystem::path run, std::shared_ptr<state::Coordinator> coordinator);
  /// Waits for a running save.
  ~LocalCheckpoints();
  LocalCheckpoints(const LocalCheckpoints&) = delete;
  LocalCheckpoints& operator=(const LocalCheckpoints&) = delete;

  /// Returns the newest complete checkpoint of the start before, damaged or not.
  std::optional<state::Checkpoint> newest() const;
  /// Removes what is left of the start before.
  void forget();

  /// True if a local checkpoint may have a state that is in no other checkpoint.
  bool has_any() const { return are_on() || !before_.empty(); }
  /// True from open() on, if the config asks for local checkpoints and there is room for them.
  bool are_on() const { return writer_ != nullptr; }
  /// After the run has loaded its start, which is in no other checkpoint if `resumed_from_local`: goes on with the
  /// folder of the start before, or makes a new one, if the config asks for local checkpoints and there is room for
  /// those of a state of `bytes`. Without room a new run gets a usage error; one that resumes gets a warning, and has
  /// none. Returns the warning. If are_on() is then false, the folder of the start before is left until forget().
  std::optional<std::string> open(bool resumes, bool resumed_from_local, int64_t bytes);

  /// As AsyncCheckpointer::save, also if checkpoint.async_mode is "disabled".
  void save(const state::CheckpointContents& contents);
  /// Waits until no save is running. Called before an update, it ensures that at most one finished step is repeated.
  void wait();
  /// Returns and clears the error of a save that is no longer running, if there was one.
  std::optional<std::string> take_failure();
  /// Removes the folder and the pointer: the state is in another checkpoint, and there will be no more local ones.
  void close();

 private:
  std::string lacks_space(const std::filesystem::path& folder, int64_t bytes) const;
  void point_to(const std::filesystem::path& folder) const;

  const CheckpointConfig& config_;
  std::filesystem::path run_;
  std::filesystem::path before_;  // folder of the start before; empty: none
  std::filesystem::path folder_;  // of this start, from open() on
  std::shared_ptr<state::Coordinator> coordinator_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;  // null: local checkpoints are off
};

}  // namespace lehr::train
