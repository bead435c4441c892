// Where the threads of one group meet.
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

/// Set once by whoever fails; all rooms of a hub share it.
struct ThreadAbort {
  std::mutex mutex;
  bool aborted = false;
  std::string message;
};

/// What a rank brings to a collective.
struct Offer {
  std::string call;  ///< Must be the same on all ranks: name, type, sizes.
  at::Tensor input = {};
  at::Tensor scratch = {};            ///< Memory that the others may read in the second part.
  std::vector<int64_t> offsets = {};  ///< all_to_all: where the rows for each rank begin.
};

/// A meeting place of `size` ranks.
class ThreadRoom {
 public:
  ThreadRoom(std::string name, int64_t size, std::shared_ptr<ThreadAbort> abort, std::chrono::milliseconds timeout);

  int64_t size() const { return size_; }
  /// Puts this rank's offer down, and returns when all have. Throws if the calls differ.
  void meet(int64_t rank, Offer offer);
  /// What a rank put down; between two meetings.
  Offer& offer(int64_t rank) { return offers_[static_cast<size_t>(rank)]; }
  /// Returns when all have come here. Throws a runtime error after the time-out or an abort.
  void wait_for_all();
  /// Leaves a tensor for another rank; the memory must not change any more.
  void post(int64_t from, int64_t to, at::Tensor tensor);
  /// The number of the next tensor from `from` that `to` has not asked for yet: to be taken at any time.
  int64_t expect(int64_t from, int64_t to);
  /// The tensor of that number; waits for it. Throws as wait_for_all.
  at::Tensor take(int64_t from, int64_t to, int64_t number);
  /// Wakes everybody that waits.
  void wake();

 private:
  bool aborted() const;
  [[noreturn]] void fail_aborted() const;

  std::string name_;
  int64_t size_;
  std::shared_ptr<ThreadAbort> abort_;
  std::chrono::milliseconds timeout_;
  std::vector<Offer> offers_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  struct Letters {
    std::map<int64_t, at::Tensor> waiting = {};  // by number
    int64_t posted = 0;
    int64_t expected = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Letters> letters_;  // by sender and receiver
  int64_t waiting_ = 0;
  uint64_t round_ = 0;
};

}  // namespace lehr::mesh
