// The costs of a program's actions, and the timeline that follows from them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lehr/pipeline/action_clock.h"
#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Costs of actions. Vectors are indexed by stage; a vector of length 1 holds the value of all stages.
struct PipelineCosts {
  std::vector<double> forward = {1.0};          ///< Seconds per F.
  std::vector<double> backward_input = {1.0};   ///< Seconds per I.
  std::vector<double> backward_weight = {1.0};  ///< Seconds per W. A B takes as long as I and W together.
  /// Replaces the three above if it is not null; it serves one simulation.
  std::shared_ptr<ActionClock> clock = nullptr;

  /// Seconds to send the hidden states of one micro-batch (or their gradients) from rank to rank; null: zero. Transfers
  /// between the same two ranks in one direction are sequential.
  std::function<double(int64_t from_rank, int64_t to_rank)> transfer = nullptr;
  double launch_latency = 0.0;  ///< Seconds before each transfer begins. Latencies of different transfers overlap.

  /// Overlap of the members of an entry such as "0F3|3B1": with 0 the entry takes the sum of their times, with 1 the
  /// longest of them.
  double overlap = 0.0;

  /// Seconds that every rank spends after the last action of all ranks: the rest of the gradient reduction, the global
  /// gradient norm (which makes ranks wait for each other) and the optimizer.
  double update = 0.0;

  std::vector<double> activation_bytes = {0.0};  ///< Held from the start of a forward to the end of its backward.
  /// Fraction of activation_bytes that is held between I and W.
  double kept_after_dgrad = 1.0;
  /// Bytes of a stage's outputs for one micro-batch, and of their gradients. Both ends of a transfer hold them in
  /// addition to the activations: the sender until the transfer ends, the receiver from its start until the computation
  /// that uses them begins (for a gradient: ends). The value of the last stage is ignored.
  std::vector<double> boundary_bytes = {0.0};
};

/// An action with its time. For a send or a receive it is the time of the transfer.
struct TimedAction {
  Action action;
  int64_t entry;  ///< Index of its entry in the rank's list (with communication).
  double start;   ///< Seconds since the first action of all ranks.
  double end;
  int64_t lane = 0;  ///< Members of an entry that overlap are drawn in lanes 0, 1, ...
  int64_t lanes = 1;
};

/// A change of memory: from `seconds` on, a rank holds `bytes`.
struct MemoryPoint {
  double seconds;
  double bytes;
};

/// The result of a simulation. Times are in seconds since the first action of all ranks.
struct Timeline {
  Program program;                               ///< The simulated program, with communication.
  std::vector<std::vector<TimedAction>> ranks;   ///< By rank, in the order of the list.
  std::vector<std::vector<MemoryPoint>> memory;  ///< By rank, ascending in time; empty if all bytes are 0.
  std::vector<double> busy;                      ///< By rank: seconds of computation, including the update.
  std::vector<double> first_start;               ///< By rank: start of its first computation.
  std::vector<double> last_end;                  ///< By rank: end of its part of the step, without the update.
  double makespan = 0;                           ///< Seconds from the first action to the end of the update.
  double update = 0;                             ///< Seconds of the update, which are part of makespan.

  /// Returns the fraction of all ranks' time that is idle: 1 - sum(busy) / (P * makespan).
  double bubble_share() const;
  /// Returns the bubble without a barrier between steps, as the zero-bubble papers count it: a step then takes as long
  /// as the longest span from a rank's first to its last computation. With a gradient norm over all ranks a step takes
  /// the makespan instead.
  double bubble_share_without_barrier() const;
  /// Returns the peak memory in bytes by rank; zeros if there are no bytes.
  std::vector<double> peak_memory() const;
};

}  // namespace lehr::pipeline
