// Synchronization and exchange of tensors among the threads of one group.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::mesh {

/// Set once by the rank that fails; all communicators of a hub share it.
struct ThreadAbort {
  std::mutex mutex;
  bool aborted = false;
  std::string message;
};

/// The contribution of one rank to a collective.
struct Slot {
  std::string call;  ///< Must be the same on all ranks: name, type, sizes.
  at::Tensor input = {};
  at::Tensor scratch = {};            ///< Memory that the others may read in the second part.
  std::vector<int64_t> offsets = {};  ///< all_to_all: first row for each rank.
};

/// Exchanges tensors among `size` ranks that are threads.
class ThreadCommunicator {
 public:
  ThreadCommunicator(
      std::string name, int64_t size, std::shared_ptr<ThreadAbort> abort, std::chrono::milliseconds timeout);

  int64_t size() const { return size_; }
  /// Publishes this rank's slot, and returns when all ranks have. Throws a runtime error if the calls differ.
  void meet(int64_t rank, Slot offer);
  /// The slot of a rank; valid between two synchronizations.
  Slot& slot(int64_t rank) { return slots_[static_cast<size_t>(rank)]; }
  /// Returns when all ranks have called it. Throws a runtime error after the time-out or an abort.
  void wait_for_all();
  /// Posts a tensor for another rank; its memory must not change any more.
  void post(int64_t from, int64_t to, at::Tensor tensor);
  /// Reserves the number of the next tensor from `from` to `to`, which can be taken at any time.
  int64_t expect(int64_t from, int64_t to);
  /// Waits for the tensor with that number and returns it. Throws as wait_for_all does.
  at::Tensor take(int64_t from, int64_t to, int64_t number);
  /// Wakes all waiting threads.
  void wake();

 private:
  bool aborted() const;
  [[noreturn]] void fail_aborted() const;

  std::string name_;
  int64_t size_;
  std::shared_ptr<ThreadAbort> abort_;
  std::chrono::milliseconds timeout_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  struct Mailbox {
    std::map<int64_t, at::Tensor> waiting = {};  // by number
    int64_t posted = 0;
    int64_t expected = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Mailbox> mailboxes_;  // by sender and receiver
  int64_t waiting_ = 0;
  uint64_t round_ = 0;
};

}  // namespace lehr::mesh
