// Exchange of failures between ranks: all ranks end with one message that names the failed rank and its state, instead
// of a broken connection on every rank.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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
#include "lehr/mesh/unfinished_works.h"

namespace c10d {
class Store;
class Work;
}  // namespace c10d

namespace lehr::mesh {

/// Thrown by a rank that ends because of another one, or because a collective hung. A runtime error.
class PeerFailure : public Error {
 public:
  /// `culprit` is the rank that ended with a message of its own; -1 if there is none, as after a hang.
  PeerFailure(const std::string& message, int64_t culprit) : Error(ErrorKind::runtime, message), culprit_(culprit) {}
  int64_t culprit() const { return culprit_; }

 private:
  int64_t culprit_;
};

/// Tells all ranks that `rank` failed, through the keys that their watchdogs poll. Throws the store's errors.
void publish_failure(c10d::Store& store, int64_t rank, const std::string& message);

/// Watches the collectives of one rank. A thread polls the store a few times per second. When another rank raises the
/// alarm, it publishes the state of this rank, even while the rank computes. When another rank has failed, the
/// collectives of this one fail with that rank's message. It keeps polling while the store does not answer; when the
/// store cannot be reached any more, the collectives fail with that reason.
class Watchdog {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t world_size = 1;
    /// Time limit of a collective, which the backend enforces, and of a message between two ranks. 0: none.
    std::chrono::milliseconds timeout{};
    /// Time that the other ranks get to report their state.
    std::chrono::milliseconds patience{2500};
    /// Time limit for the store to answer a call.
    std::chrono::milliseconds answer_time{6000};
    /// Time that the store may be unreachable (no connection, as opposed to no answer) before this rank ends, too.
    std::chrono::milliseconds store_patience{10'000};
    /// Breaks the connections of this rank, so that nothing waits for the others any more.
    std::function<void()> disconnect = [] {};
    /// The clock that the backend's time limits follow.
    std::function<std::chrono::system_clock::time_point()> time_of_day = std::chrono::system_clock::now;
  };
  /// The watchdog uses a connection of its own, like that of `store`.
  Watchdog(const c10::intrusive_ptr<c10d::Store>& store, Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  CollectiveLog& log() { return log_; }
  /// Sets the description of a rank that messages add to its number: "dp_shard 1, tp 0".
  void set_coordinates(std::function<std::string(int64_t rank)> coordinates);

  /// Sets the description of this rank's work for reports and messages: "step 12"; empty: none.
  void set_doing(std::string doing);

  /// Returns what this rank does right now: CollectiveLog::where(), what its device has not done, and its work.
  std::string where();

  /// Throws PeerFailure if a rank has failed.
  void check() const;
  /// The time limit of a collective; zero if there is none.
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  /// Call it when the other ranks are late at a point without collectives. Asks all of them for their state, through
  /// `store`, with short calls. If one is silent, all ranks end with `what` and its name: throws PeerFailure.
  void expect_answers(c10d::Store& store, const std::string& what);
  /// Call it again and again while this rank waits for `key` of `store`. Each time another time limit of a collective
  /// has passed since `start`, returns the seconds since then to one of the ranks that wait for the key, which calls
  /// expect_answers; otherwise nothing. `asked` counts these times.
  std::optional<int64_t> turn_to_ask(
      c10d::Store& store, const std::string& key, std::chrono::steady_clock::time_point start, int64_t& asked) const;
  /// Waits for the collective of `ticket`, or for a message from one rank to another. `ranks` are the group's. Work
  /// that is not complete then continues on the device, and the watchdog's thread observes it: if it fails or takes too
  /// long, all ranks are told, connections are broken so that nothing waits for the device any more, and `check`
  /// throws. Functions of work and `disconnect` may wait for other threads that call this object.
  void wait(
      const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, bool message, const std::vector<int64_t>& ranks);
  /// Call it when a collective failed: collects the other ranks' reports, and throws the one error that explains the
  /// failure.
  [[noreturn]] void explain(int64_t ticket, const std::vector<int64_t>& ranks, const std::string& problem);

  /// Tells the others that this rank ends with this message. Only the first such message of all ranks counts.
  void fail(const std::string& message) noexcept;
  bool failed() const { return failed_; }
  /// Call it when this rank ends normally. Returns when all ranks have ended, or after `limit`: a rank that does not
  /// keep the store need not wait and passes 0.
  void shut_down(std::chrono::milliseconds limit) noexcept;
  /// Call it when this rank keeps the store and ends after a failure: returns when all others know of it, or after
  /// `limit`.
  void wait_until_peers_know(std::chrono::milliseconds limit) noexcept;

 private:
  class Waiting;
  void watch();
  std::chrono::milliseconds interval() const;  // between two looks at the store
  void expect_message(const c10::intrusive_ptr<c10d::Work>& work);
  void look_at_device();
  void look_at_clock();
  std::chrono::nanoseconds clock_offset() const;
  [[noreturn]] void explain(
      const CollectiveRecord& record, const std::vector<int64_t>& ranks, const std::string& problem, bool of_device);
  void answer_requests();
  void publish_where();
  void look_for_failure();
  CollectiveRecord record_of(int64_t ticket) const;
  bool set_failure(const std::string& message, int64_t culprit);
  void wait_for_count(const std::string& key, int64_t count, std::chrono::milliseconds limit);
  std::string called(int64_t rank) const;
  std::vector<int64_t> ranks_beside(const std::vector<int64_t>& ranks) const;
  std::optional<std::string> absence(
      const std::string& word, const std::string& group_key, const CollectiveRecord& missed) const;

  BoundedStore store_;
  Options options_;
  CollectiveLog log_;
  UnfinishedWorks on_device_;
  mutable std::mutex mutex_;  // guards the members below; works and connections are called without it
  std::condition_variable wake_;
  std::function<std::string(int64_t)> coordinates_;
  std::optional<PeerFailure> failure_;                              // of another rank
  c10::intrusive_ptr<c10d::Work> message_;                          // a send or receive that this rank waits for
  std::optional<CollectiveRecord::Clock::time_point> waits_since_;  // in the backend
  std::chrono::nanoseconds latest_offset_{};  // of the time of day from the steady clock, since then
  bool set_back_ = false;                     // the time of day, since then
  std::atomic<bool> is_overdue_ = false;      // the wait, by a clock that nobody can set
  std::string doing_;
  int64_t answered_ = 0;  // requests for reports
  bool ending_ = false;
  std::atomic<bool> failed_ = false;
  std::thread thread_;
};

}  // namespace lehr::mesh
