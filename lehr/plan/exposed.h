// Exposed communication: one rank goes through the program of its passes, as if no other rank
// used its links.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/plan/call_queues.h"
#include "lehr/plan/stage_measurement.h"

namespace lehr::plan {

/// A pass of a stage (PassPlace) on a machine.
struct TimedPass {
  struct Call {
    std::string axes;
    std::string collective;
    LinkTime time = {};  ///< On idle links.
    double covered = 0;  ///< The part of each wait that another system overlaps (PeerDesign::overlap).
  };
  std::vector<ActionEvent> events = {};  ///< In the order of the program. Their `work` is not used.
  std::vector<double> seconds = {};      ///< Of computation before each event.
  std::vector<Call> calls = {};          ///< That events start; or wait for, if a pass before it has started them.
};

/// The calls of one stage that it has started and not waited for.
class StageCalls {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  friend class RankPasses;
  struct Open {
    size_t number;
    std::string axes;
    std::string collective;
  };
  const TimedPass* pass_ = nullptr;
  std::vector<size_t> numbers_;  // by call of the pass, kNone unless it was started and not waited for
  std::vector<Open> earlier_;    // of passes before it
};

/// The passes of one rank. Calls of one group, and messages of a group in one direction, run one after the other;
/// others share links. While the rank computes, they progress at `overlap` of their speed. Other ranks of the same
/// groups are assumed to do the same at the same time.
class RankPasses {
 public:
  explicit RankPasses(double overlap) : queues_(overlap) {}

  /// Returns the seconds of events `begin` to `end` - 1. `pass` must live until the stage begins another one; `begin` 0
  /// begins it. A wait for a call that no earlier pass has started begins an all-gather, or takes no time.
  double run(const TimedPass& pass, size_t begin, size_t end, StageCalls& stage);
  /// Advances the calls while the rank computes, or is idle.
  void pass_time(double seconds, bool computing) { queues_.pass(seconds, computing); }

  /// Seconds of waits, by axes and collective.
  const std::map<std::pair<std::string, std::string>, double>& exposed() const { return exposed_; }

 private:
  size_t start(const TimedPass::Call& call);
  size_t awaited(const TimedPass::Call& call, size_t index, StageCalls& stage);

  CallQueues queues_;
  std::map<std::string, int64_t> names_;  // of queues
  std::map<std::pair<std::string, std::string>, double> exposed_;
};

}  // namespace lehr::plan
