// What a rank tells the others when something goes wrong, and what it learns from them: one message that says who
// failed and where, instead of a broken connection on every rank.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"
#include "lehr/mesh/bounded_store.h"
#include "lehr/mesh/collective_log.h"

namespace c10d {
class Store;
class Work;
}  // namespace c10d

namespace lehr::mesh {

/// What a rank throws that ends because of another one, or because a collective hung. A runtime error.
class PeerFailure : public Error {
 public:
  /// `culprit`: the rank that ended with a message of its own; -1 where there is none, as after a hang.
  PeerFailure(const std::string& message, int64_t culprit) : Error(ErrorKind::runtime, message), culprit_(culprit) {}
  int64_t culprit() const { return culprit_; }

 private:
  int64_t culprit_;
};

/// Tells all ranks that `rank` failed, through the keys that their watches look at. Throws what the store throws.
void publish_failure(c10d::Store& store, int64_t rank, const std::string& message);

/// The watch over the collectives of one rank. A thread looks at the store a few times a second: when another rank
/// raises the alarm, it publishes where this one is, even while the rank computes; when another rank has failed, the
/// collectives of this one fail with that rank's message. It goes on looking when the store does not answer; when there
/// is nothing to connect to any more, the collectives fail with that.
class RankWatch {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t world_size = 1;
    /// How long a collective may take: for the text of messages; the backend keeps the time.
    std::chrono::milliseconds timeout{};
    /// How long the other ranks get to say where they are.
    std::chrono::milliseconds patience{2500};
    /// How long the store may take to answer a call.
    std::chrono::milliseconds answer_time{6000};
    /// How long the store may be out of reach (no connection, not: no answer) before this rank ends, too.
    std::chrono::milliseconds store_patience{10'000};
    /// Breaks the connections of this rank, so that nothing waits for the others any more.
    std::function<void()> disconnect = [] {};
  };
  /// The watch uses a connection of its own, like that of `store`.
  RankWatch(const c10::intrusive_ptr<c10d::Store>& store, Options options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  CollectiveLog& log() { return log_; }
  /// How messages call a rank beside its number: "dp_shard 1, tp 0".
  void set_coordinates(std::function<std::string(int64_t rank)> coordinates);

  /// Throws PeerFailure if a rank has failed.
  void check() const;
  /// Waits for the collective of `ticket`, or for a message from one rank to another. `ranks` are the group's. Work
  /// that is not completed then goes on on a device, and the watch's thread waits for it: when it takes too long, all
  /// ranks are told, connections are broken so that nobody waits for the device any more, and `check` throws.
  void wait(
      const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, bool message, const std::vector<int64_t>& ranks);
  /// To be called where a collective failed: asks the others, and throws the one error that says what happened.
  [[noreturn]] void explain(int64_t ticket, const std::vector<int64_t>& ranks, const std::string& problem);

  /// Tells the others that this rank ends with this message. The first such message of all ranks counts.
  void fail(const std::string& message) noexcept;
  bool failed() const { return failed_; }
  /// This rank ends in order. Returns when all ranks have, or after `limit`: a rank that does not keep the store need
  /// not wait and gives 0.
  void leave(std::chrono::milliseconds limit) noexcept;
  /// This rank keeps the store and ends after a failure: returns when all others know of it, or after `limit`.
  void linger(std::chrono::milliseconds limit) noexcept;

 private:
  /// Of a collective that the host has waited for and the device has not done yet.
  struct OnDevice {
    c10::intrusive_ptr<c10d::Work> work;
    CollectiveRecord record;
    std::vector<int64_t> ranks;
  };
  void watch();
  void leave_to_device(const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, const std::vector<int64_t>& ranks);
  void look_at_device();
  [[noreturn]] void explain(
      const CollectiveRecord& record, const std::vector<int64_t>& ranks, const std::string& problem);
  void publish_where();
  void look_for_failure();
  bool device_waits() const;
  CollectiveRecord record_of(int64_t ticket) const;
  bool set_failure(const std::string& message, int64_t culprit);
  void wait_for_count(const std::string& key, int64_t count, std::chrono::milliseconds limit);
  std::string called(int64_t rank) const;
  std::optional<std::string> absence(
      const std::string& word, const std::string& group_key, const CollectiveRecord& missed) const;

  BoundedStore store_;
  Options options_;
  CollectiveLog log_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::function<std::string(int64_t)> coordinates_;
  std::optional<PeerFailure> failure_;      // of another rank
  c10::intrusive_ptr<c10d::Work> message_;  // a send or receive that this rank waits for
  std::deque<OnDevice> on_device_;          // oldest first
  bool ending_ = false;
  std::atomic<bool> failed_ = false;
  std::thread thread_;
};

}  // namespace lehr::mesh
