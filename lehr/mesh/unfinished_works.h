// Collectives that the host has waited for and that the device has not completed yet.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/mesh/collective_log.h"

namespace c10d {
class Work;
}

namespace lehr::mesh {

/// One unfinished collective.
struct UnfinishedWork {
  c10::intrusive_ptr<c10d::Work> work;
  CollectiveRecord record;
  std::vector<int64_t> ranks;  ///< Ranks of the group.
};

/// Returns whether the work is done; throws the reason if it failed.
bool is_done(c10d::Work& work);

/// The unfinished collectives of a rank. Thread-safe. Works are queried and destroyed outside of its lock: a query of
/// the device may wait for a thread that holds the device's queue, and that thread for the lock.
class UnfinishedWorks {
 public:
  void add(UnfinishedWork work);
  /// The oldest work that was not found complete.
  std::optional<UnfinishedWork> oldest() const;

  struct Failed {
    UnfinishedWork work;
    std::string problem;
  };
  /// Removes completed works. Returns the oldest that failed, which stays, since its progress is unknown.
  std::optional<Failed> forget_done();

 private:
  mutable std::mutex mutex_;
  std::deque<UnfinishedWork> works_;  // oldest first
};

}  // namespace lehr::mesh
