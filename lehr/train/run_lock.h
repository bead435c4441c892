// A lock file: one run per folder.
#pragma once

#include <filesystem>

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

}  // namespace lehr::train
