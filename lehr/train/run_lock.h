// A lock file: one run per folder.
#pragma once

#include <filesystem>
#include <optional>

namespace lehr::train {

/// Locks a folder for one process, because two runs would overwrite each other's checkpoints. The lock ends with the
/// process, however it ends.
class RunLock {
 public:
  /// Creates the folder. Throws a usage error that names the other process if the folder is locked.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

/// Returns whether a run holds the lock of this folder, in any process of a machine whose file system shares locks with
/// this one; nullopt if it has no lock file that can be read. Writes nothing. The lock is tried, and so held for
/// microseconds, which a RunLock that is constructed at that moment waits for.
std::optional<bool> is_locked(const std::filesystem::path& folder);

}  // namespace lehr::train
