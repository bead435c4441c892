// The calls of one rank in flight: those of a group run one after the other, and groups share links.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lehr/plan/links.h"

namespace lehr::plan {

/// A collective or message that a rank starts.
struct LinkCall {
  int64_t queue = 0;   ///< Of its group; messages have one for each direction.
  LinkTime time = {};  ///< On idle links.
  bool sends = true;
  bool receives = true;
};

/// Other ranks are assumed to make the same calls at the same time.
class CallQueues {
 public:
  /// While the rank computes, calls progress at `overlap` of their speed.
  explicit CallQueues(double overlap) : overlap_(overlap) {}

  /// Returns the number of the call.
  size_t start(const LinkCall& call);
  bool done(size_t call) const { return call < first_ || calls_[call - first_].time.seconds() <= 0; }
  /// Advances all calls by at most `limit` seconds, until a latency or a transfer ends. Returns the seconds: `limit`,
  /// if no call is in flight.
  double go_on(double limit, bool computing);
  /// Advances all calls by `seconds`.
  void pass(double seconds, bool computing);

 private:
  struct Queue {
    int64_t name;
    std::deque<size_t> calls;
    double speed = 0;  // of the first one
  };
  LinkCall& first_of(const Queue& queue) { return calls_[queue.calls.front() - first_]; }
  void set_speeds(bool computing);

  double overlap_;
  std::vector<LinkCall> calls_;  // with the time that is left
  size_t first_ = 0;             // number of calls_[0]; earlier ones are done
  std::vector<Queue> queues_;    // none is empty
};

}  // namespace lehr::plan
