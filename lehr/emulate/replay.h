// Virtual time of recorded ranks: an event-driven simulation of their devices and of the links between them.
//
// Each rank has one queue of computation; a wait stops it until the transfer has ended. Each channel carries out its
// calls one after the other. A call begins when all its ranks have started it and the channel is free. It first takes
// its latency, and then keeps links busy. Concurrent transfers share a link's bandwidth. While one of its ranks
// computes, a transfer progresses at Machine::communication_overlap of its speed.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/emulate/recording.h"
#include "lehr/plan/machine.h"

namespace lehr::emulate {

/// Transfers of one kind, on one rank.
struct TransferTime {
  int64_t calls = 0;
  double seconds = 0;  ///< From begin to end of the transfers.
  double exposed = 0;  ///< Seconds in which the rank waited for one that had begun, or for the channel to be free.
};

/// A step of one rank.
struct RankTime {
  double computing = 0;
  double waiting = 0;  ///< Seconds in which the rank waited for a call that another rank had not started: the bubble.
  double end = 0;      ///< Seconds from the beginning of the step.
  std::map<std::pair<std::string, std::string>, TransferTime> transfers = {};  ///< By axes and collective.

  double exposed() const;
  /// Returns the exposed seconds of these axes.
  double exposed(const std::string& axes) const;
};

/// A piece of the timeline.
struct Span {
  int64_t rank = 0;  ///< Of a transfer, its first.
  std::string lane;  ///< "actions", "waits", or the axes of a transfer.
  std::string name;
  double start = 0;
  double end = 0;
};

/// An action of a rank, in seconds from the beginning of the step.
struct TimedRankAction {
  pipeline::Action action;
  double start = 0;
  double end = 0;
};

/// The emulated step of all ranks.
struct Replay {
  double step_seconds = 0;
  std::vector<RankTime> ranks;
  std::vector<std::vector<TimedRankAction>> actions;  ///< By rank; each from its first computation on.
  std::vector<Span> spans;                            ///< Waits and transfers.
};

/// Replays the recordings of all ranks, with the seconds of their events, on `machine`. The result depends on nothing
/// else. Throws a runtime error that names the ranks if they call different collectives, or wait for each other.
Replay replay(
    const std::vector<Recording>& recordings,
    const std::vector<std::vector<double>>& seconds,
    const plan::Machine& machine);

}  // namespace lehr::emulate
