// Local checkpoints: copies of the state of a run in folders of its machines, by default in shared memory, which are
// cheap enough for every step and outlive the processes of the run. Megatron calls them non-persistent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/mesh/transport.h"
#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/train/config.h"
#include "lehr/train/found_parts.h"
#include "lehr/train/local_folder.h"
#include "lehr/train/part_replicator.h"

namespace lehr::train {

/// The local checkpoints of one run, of which only the newest is kept. All ranks construct one and call its functions
/// together, in the same order. Their folder has a random name; a file beside the run's other checkpoints points to it.
///
/// On one machine a local checkpoint is like any other, and a start loads it from there. On several machines each has a
/// folder of that name, with the parts of its ranks and copies of those of the machine before it (PartReplicator). A
/// start first writes their checkpoint to the run's other ones (FoundParts), since no machine has room for all parts.
class LocalCheckpoints {
 public:
  /// Returns the file that points to the folder: its path (on the machine of rank 0), which folder of the run it
  /// belongs to, so that a copy of the run's folder does not count, and whether it is on several machines.
  static std::filesystem::path pointer_in(const std::filesystem::path& run);

  /// `run` is the folder of the run's other checkpoints. checkpoint.local_folder may differ between the ranks. Throws a
  /// usage error if there are to be local checkpoints and no folder can be created for them. `transport` connects the
  /// ranks, and may be null for one.
  LocalCheckpoints(
      const CheckpointConfig& config,
      std::filesystem::path run,
      std::shared_ptr<state::Coordinator> coordinator,
      mesh::Transport* transport = nullptr);
  /// Waits for a running save.
  ~LocalCheckpoints();
  LocalCheckpoints(const LocalCheckpoints&) = delete;
  LocalCheckpoints& operator=(const LocalCheckpoints&) = delete;

  /// Returns the newest complete checkpoint of the start before, damaged or not. If not all ranks see it as a whole,
  /// its path is the one in `store` which writer_to() writes to.
  std::optional<state::Checkpoint> newest(const state::CheckpointStore& store) const;
  /// Returns a function that writes that checkpoint to `store` as FoundParts::write_to does; none if all ranks see it.
  std::function<std::optional<std::string>()> writer_to(state::CheckpointStore& store, bool contents);
  /// As FoundParts::warnings.
  std::vector<std::string> warnings(int64_t step) const;
  /// Removes what is left of the start before.
  void forget();
  /// The same, but keeps the pointer to a folder that no rank sees.
  void forget_seen();

  /// True if a local checkpoint may have a state that is in no other checkpoint.
  bool has_any() const { return are_on() || (!before_.empty() && !is_spread()); }
  /// True from open() on, if the config asks for local checkpoints and there is room for them.
  bool are_on() const { return writer_ != nullptr; }
  /// After the run has loaded its start, which is in no other checkpoint if `resumed_from_local`: continues with the
  /// folder of the start before, or makes a new one, if the config asks for local checkpoints and there is room for
  /// those of a state of `bytes`, of which this rank saves `share`. Without room a new run gets a usage error; one that
  /// resumes gets a warning, and has none. Returns the warning. If are_on() is then false, the folder of the start
  /// before is left until forget().
  std::optional<std::string> open(bool resumes, bool resumed_from_local, int64_t bytes, int64_t share);

  /// As AsyncCheckpointer::save, even if checkpoint.async_mode is "disabled".
  void save(const state::CheckpointContents& contents);
  /// Waits until no save is running. Called before an update, it ensures that at most one finished step is repeated.
  void wait();
  /// Returns and clears the error of a save that is no longer running, if there was one.
  std::optional<std::string> take_failure();
  /// Removes the folder and the pointer: the state is in another checkpoint, and there will be no more local ones.
  void close();

 private:
  // True if not all ranks see the checkpoints of the start before as a whole.
  bool is_spread() const { return parts_.has_value(); }
  bool is_on_several_machines() const { return machines_.size() > 1; }
  std::string lacks_space(bool has_one, int64_t kept, int64_t copied) const;
  std::string lacks_space_anywhere(const std::filesystem::path& folder, int64_t bytes, int64_t share) const;
  std::filesystem::path choose_folder(bool same) const;
  void find_before();
  void remove(const std::filesystem::path& folder, bool on_all_machines);
  void point_to(const std::filesystem::path& folder) const;

  const CheckpointConfig& config_;
  std::filesystem::path run_;
  std::filesystem::path before_;     // folder of the start before; empty: none, or not on this machine
  std::optional<FoundParts> parts_;  // of the start before; on all ranks or none
  std::filesystem::path folder_;     // of this start, from open() on
  std::shared_ptr<state::Coordinator> coordinator_;
  mesh::Transport* transport_;
  Machines machines_;                                 // if the config asks for local checkpoints
  std::unique_ptr<PartReplicator> replicator_;        // null: on one machine
  std::unique_ptr<state::AsyncCheckpointer> writer_;  // null: local checkpoints are off
};

}  // namespace lehr::train
