// Saves checkpoints while training goes on: the tensors are copied, and a thread writes the copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lehr/base/side_stream.h"
#include "lehr/state/checkpoint_contents.h"

namespace lehr::state {

/// How a save went.
struct SaveResult {
  int64_t step = 0;
  std::filesystem::path path;
  int64_t num_bytes = 0;     ///< Of the tensors.
  double copy_seconds = 0;   ///< What the training loop waited: for the save before, and for the copy.
  double write_seconds = 0;  ///< What the thread took beside it.
  std::string error;         ///< Empty if all went well. Else what failed; the checkpoints before it stand.

  bool ok() const { return error.empty(); }
};

/// One object a run and rank, used by one thread. Of many ranks all call `save` for the same steps, each with its parts
/// (write_checkpoint says what happens then); every rank has a result, and of a save that failed anywhere all have the
/// same error. Host memory for the copy is taken at the first save and used again (pinned
/// where tensors come from a GPU).
class AsyncCheckpointer {
 public:
  /// After each save that went well, only `keep_latest` checkpoints stay (0: all).
  /// `coordinator`: what the ranks agree through; none for one rank.
  explicit AsyncCheckpointer(
      CheckpointStore store, int64_t keep_latest = 0, std::shared_ptr<Coordinator> coordinator = nullptr);
  /// Waits for a save under way; for at most a minute for other ranks, if it happens because of an exception.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  /// Copies the contents and returns; the tensors may then change. (Those on a GPU are copied behind what the current
  /// stream was given before, and what it is given afterwards waits for that; the host does not.) Waits for a save
  /// before it. Throws a usage error for contents that `check` refuses where a rank is alone; all else that can go
  /// wrong is a SaveResult.
  void save(const CheckpointContents& contents);

  /// The oldest result that was not given yet, if there is one. Does not wait.
  std::optional<SaveResult> poll();

  /// Returns when no save is under way; `poll` then has its result.
  void wait();

  const CheckpointStore& store() const { return store_; }

 private:
  CheckpointContents copy(const CheckpointContents& contents);
  void write(const CheckpointContents& contents, const std::string& failure);

  CheckpointStore store_;
  int64_t keep_latest_;
  std::shared_ptr<Coordinator> coordinator_;
  std::map<std::pair<std::string, std::string>, at::Tensor> staging_;  // by stem, and name and box
  std::optional<SideStream> copies_;                                   // from a GPU, which the writing thread waits for
  std::deque<SaveResult> results_;
  SaveResult current_;  // the thread's, until it is joined
  std::atomic<bool> written_ = false;
  std::thread thread_;
};

}  // namespace lehr::state
