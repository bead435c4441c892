// One run a folder.
#pragma once

#include <filesystem>

namespace lehr::train {

/// Holds a folder for one process: two runs that write the same checkpoints would ruin each other's. The hold ends with
/// the process, however it ends.
class RunLock {
 public:
  /// Makes the folder. Throws a usage error that names the other process if the folder is held.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace lehr::train
