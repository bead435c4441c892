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
/// together, in the same order. Every start has a new folder with a random name; the file `local_checkpoints` beside
/// the run's other checkpoints has its path. So a start finds the folder of the start before, and nobody else's.
class LocalCheckpoints {
 public:
  /// `run` is the folder of the run's other checkpoints. With local checkpoints, creates the folder of this start, with
  /// access for this user only. Throws a usage error if it cannot be created or if a rank does not see it, because the
  /// ranks are on several machines.
  LocalCheckpoints(
      const CheckpointConfig& config, std::filesystem::path run, std::shared_ptr<state::Coordinator> coordinator);
  /// Waits for a running save. Removes the folder of a start that ended before open().
  ~LocalCheckpoints();
  LocalCheckpoints(const LocalCheckpoints&) = delete;
  LocalCheckpoints& operator=(const LocalCheckpoints&) = delete;

  bool are_on() const { return writer_ != nullptr; }

  /// Returns the step of the newest complete checkpoint of the start before, damaged or not; -1 if there is none.
  int64_t newest();
  /// Returns the folder of that checkpoint; nullopt if it is damaged, which `damage` then describes.
  std::optional<std::filesystem::path> undamaged(int64_t step, std::string& damage);

  /// After the run has loaded its start: takes over the checkpoint `used` of the start before if the run continues from
  /// it, and removes its other files. From now on a later start finds the folder of this one, if local checkpoints are
  /// on and there is room for those of a state of `bytes`. Otherwise throws a usage error; if the run resumes (`used`
  /// is set), turns them off and returns a warning.
  std::optional<std::string> open(const std::optional<std::filesystem::path>& used, int64_t bytes);
  /// Removes the folder, if any: there will be no more local checkpoints.
  void turn_off();

  /// As AsyncCheckpointer::save, also if checkpoint.async_mode is "disabled".
  void save(const state::CheckpointContents& contents);
  /// Waits until no save is running. Called before an update, it ensures that at most one finished step is repeated.
  void wait();
  /// Returns and clears the error of a save that is no longer running, if there was one.
  std::optional<std::string> take_failure();

 private:
  std::filesystem::path pointer() const;
  void take_over(const std::optional<std::filesystem::path>& used);
  std::string lacks_space(int64_t bytes) const;

  const CheckpointConfig& config_;
  std::filesystem::path run_;
  std::filesystem::path before_;  // of the start before; empty: none. On the main rank
  std::filesystem::path folder_;  // of this start
  std::shared_ptr<state::Coordinator> coordinator_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;  // null: local checkpoints are off
  bool is_open_ = false;
};

}  // namespace lehr::train
