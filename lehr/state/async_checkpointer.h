// Asynchronous checkpoints: the tensors are copied, and a thread writes the copy while training continues.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lehr/memory/staged_copy.h"
#include "lehr/state/checkpoint_contents.h"

namespace lehr::state {

/// The result of a save.
struct SaveResult {
  int64_t step = 0;
  std::filesystem::path path;
  int64_t num_bytes = 0;     ///< Size of the tensors.
  double copy_seconds = 0;   ///< Wait of the training loop in save() and wait_copied(), also for the previous save.
  double write_seconds = 0;  ///< Time of the writing thread, in parallel to training.
  std::string error = {};    ///< Empty on success. Otherwise the failure; earlier checkpoints are kept.
  std::string untidy = {};   ///< Why an old checkpoint could not be deleted; the new one is saved.

  bool ok() const { return error.empty(); }
};

/// Writes and publishes contents on all ranks, as write_checkpoint does, and removes the checkpoints that they replace.
/// Returns why one of those could not be removed; empty: all were.
using WriteContents = std::function<std::string(const CheckpointContents& contents, const std::string& failure)>;

/// Saves the checkpoints of one rank of a run; used by one thread. With several ranks all call `save` for the same
/// steps, each with its parts (write_checkpoint documents the protocol). Every rank gets a result, and if a save failed
/// on any rank, all get the same error. Host memory for the copy is allocated by the first save and reused. It is
/// pageable; tensors of a GPU are copied to it through a few pinned buffers.
class AsyncCheckpointer {
 public:
  /// Pinned memory of a rank whose tensors are on a GPU, whatever the size of its state. A GPU fills one of the buffers
  /// in about a millisecond, so larger ones would not be faster.
  static constexpr int64_t kPinnedBytes = int64_t{128} << 20;

  /// After each successful save only the last `keep_latest` checkpoints are kept (0: all). The ranks agree through
  /// `coordinator`; null for one rank. `queues_of` returns the streams of the tensors' device. `write`, which runs on
  /// the writing thread, replaces write_checkpoint and `keep_latest`.
  explicit AsyncCheckpointer(
      CheckpointStore store,
      int64_t keep_latest = 0,
      std::shared_ptr<Coordinator> coordinator = nullptr,
      QueuesOf queues_of = device_queues,
      int64_t pinned_bytes = kPinnedBytes,
      WriteContents write = {});
  /// Waits for a running save. During an exception waits for the other ranks for at most five seconds.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  /// Copies the contents on the CPU and returns; those tensors may then change. Tensors of a GPU are copied while
  /// training continues, after all work that the current stream was given before: they must not change before
  /// wait_copied(). Waits for the previous save. With one rank, throws a usage error for contents that `check` refuses;
  /// all other failures are reported as a SaveResult.
  void save(const CheckpointContents& contents);

  /// Returns when all tensors of the last save may change. Call it before the next update of weights.
  void wait_copied();

  /// Returns the oldest result that was not returned yet, if there is one. Does not wait.
  std::optional<SaveResult> poll();

  /// Returns when no save is running; `poll` then returns its result.
  void wait();

  const CheckpointStore& store() const { return store_; }

 private:
  struct Move {
    at::Tensor target;
    at::Tensor source;
  };
  struct Staged {
    CheckpointContents contents;
    std::vector<Move> moves;  // copies from a device that are not done yet
  };
  Staged stage(const CheckpointContents& contents);
  std::string copy_from_device(std::vector<Move> moves);
  void write(const CheckpointContents& contents, const std::string& failure);
  std::string write_to_store(const CheckpointContents& contents, const std::string& failure);

  CheckpointStore store_;
  int64_t keep_latest_;
  std::shared_ptr<Coordinator> coordinator_;
  WriteContents write_;
  std::map<std::pair<std::string, std::string>, at::Tensor> staging_;  // by stem, and name and shard
  QueuesOf queues_of_;
  int64_t pinned_bytes_;
  std::optional<StagedCopy> copies_;  // from a GPU
  std::atomic<bool> copied_ = true;   // all tensors of a device were read
  std::deque<SaveResult> results_;
  SaveResult current_;  // used by the thread until it is joined
  std::atomic<bool> written_ = false;
  std::thread thread_;
};

}  // namespace lehr::state
