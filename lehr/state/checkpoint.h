// The folder of a run's checkpoints. Only complete checkpoints are visible in it.
//
// A checkpoint is written into a hidden folder, synced to disk, and renamed to `step-N`. Even if the process is killed
// at any time, every folder named `step-N` is complete, and during a save the newest one remains until the new one
// exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lehr::state {

/// A complete checkpoint.
struct Checkpoint {
  int64_t step = 0;
  std::filesystem::path path;
};

/// Manages the checkpoints in a folder. Functions throw runtime errors with the path for disk failures. Only one rank
/// may call the functions that modify the folder, and two runs must not share one.
class CheckpointStore {
 public:
  /// Read permission of the folder: by the umask, or for its owner only.
  enum class Access { umask, owner };

  /// `root` need not exist: the first save creates it.
  explicit CheckpointStore(std::filesystem::path root, Access access = Access::umask)
      : root_(std::move(root)), access_(access) {}

  const std::filesystem::path& root() const { return root_; }
  /// Returns the path of a step's checkpoint, whether it exists or not: root/step-N.
  std::filesystem::path path_of(int64_t step) const;
  /// Returns the hidden folder in which a checkpoint is written after `begin`.
  std::filesystem::path temporary_path(int64_t step) const;

  /// Returns all complete checkpoints, oldest step first. Only folders named exactly `step-N` count: no `step-10.bak`.
  std::vector<Checkpoint> list() const;
  /// Returns the checkpoint with the highest step.
  std::optional<Checkpoint> latest() const;

  /// Cleans up after a killed run: removes unfinished saves and deletions, and restores a checkpoint that was being
  /// replaced. Call it at the start of a run, before anything is saved. Returns why something could not be deleted,
  /// which later saves of the same step need; empty: all was.
  std::string recover();

  /// Renames the checkpoints after `step` to step-N.aside (.aside-2, ...), for a run that continues from `step`, so
  /// that the next start does not resume from them. Returns their steps.
  std::vector<int64_t> set_aside_after(int64_t step);

  /// Renames the checkpoint of a step to step-N.`why` (.`why`-2, ...), so that it no longer counts as a checkpoint.
  /// Returns the new path.
  std::filesystem::path set_aside(int64_t step, const std::string& why);

  /// Creates the empty folder temporary_path(step).
  void begin(int64_t step);
  /// Publishes that folder: syncs all of it to disk, then renames it atomically. A checkpoint of the same step is
  /// replaced and stays readable until then.
  void commit(int64_t step);
  /// Removes that folder, as far as possible.
  void abandon(int64_t step) noexcept;

  /// Deletes the checkpoints with the lowest steps until `count` are left, but never that of step `spare`: a run that
  /// went back to an older checkpoint has just written it. The checkpoint of step `best` is kept besides these. Returns
  /// why one could not be deleted; empty: all were. Throws a usage error for a count below 1.
  std::string keep_latest(
      int64_t count, std::optional<int64_t> spare = std::nullopt, std::optional<int64_t> best = std::nullopt);

 private:
  std::filesystem::path hidden(int64_t step, const char* state) const;

  std::filesystem::path root_;
  Access access_;
};

/// Returns "; did you mean the newest checkpoint in it, PATH?" if `folder`, which is no checkpoint, is that of a run
/// whose checkpoint.folder is directly in it, or of its checkpoints; else an empty text. For the end of an error
/// message. Looks at no more than `most_entries` entries of these folders, since `folder` may have many files.
std::string meant_checkpoint(const std::filesystem::path& folder, int64_t most_entries = 10'000);

}  // namespace lehr::state
