// The folder of a run's checkpoints, in which only complete ones can be seen.
//
// A checkpoint is written into a hidden folder, put on the disk, and renamed to `step-N`. Whatever kills the process,
// and whenever: every folder named `step-N` is complete, and the newest of them before a save is there until the new
// one is.
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

/// Functions throw runtime errors with the path where the disk is at fault. One rank calls those that change something;
/// two runs must not share a folder.
class CheckpointStore {
 public:
  /// `root` need not exist: the first save makes it.
  explicit CheckpointStore(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  /// Where the checkpoint of a step is or would be: root/step-N.
  std::filesystem::path path_of(int64_t step) const;
  /// Where `begin` lets it be written.
  std::filesystem::path temporary_path(int64_t step) const;

  /// All complete checkpoints, oldest step first. Only folders named exactly `step-N` count: no `step-10.bak`.
  std::vector<Checkpoint> list() const;
  /// The one with the highest step.
  std::optional<Checkpoint> latest() const;

  /// Cleans up behind a run that was killed: removes what was being written or deleted, and puts back a checkpoint that
  /// was being replaced. Call it at the start of a run, before anything is saved.
  void recover();

  /// Renames the checkpoints behind `step` to step-N.aside (.aside-2, ...), for a run that goes on from `step`: the
  /// next start shall not resume from what it left behind. Returns their steps.
  std::vector<int64_t> set_aside_after(int64_t step);

  /// Renames the checkpoint of a step to step-N.`why` (.`why`-2, ...), so that it is none any more. Returns the new
  /// path.
  std::filesystem::path set_aside(int64_t step, const std::string& why);

  /// Makes the empty folder temporary_path(step).
  void begin(int64_t step);
  /// Makes what was written there visible: all of it goes to the disk, then the folder gets its name in one step. A
  /// checkpoint of the same step is replaced and stays readable until then.
  void commit(int64_t step);
  /// Removes what was written there, as far as that is possible.
  void abandon(int64_t step) noexcept;

  /// Deletes the checkpoints of the lowest steps until `count` are left. Never touches the one of step `spare`, which a
  /// run that went back to an older checkpoint has just written. Throws a usage error for a count below 1.
  void keep_latest(int64_t count, std::optional<int64_t> spare = std::nullopt);

 private:
  std::filesystem::path hidden(int64_t step, const char* state) const;

  std::filesystem::path root_;
};

}  // namespace lehr::state
