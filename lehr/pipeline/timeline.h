// The costs of a program's actions, and the timeline that follows from them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// A collective that ends in another action than the one that it is started in, on its rank.
struct Background {
  double seconds = 0;  ///< On idle links.
  double offset = 0;   ///< See PipelineCosts::gathers and reductions.
};

/// Costs of actions. Vectors are indexed by stage; a vector of length 1 holds the value of all stages.
struct PipelineCosts {
  std::vector<double> forward = {1.0};          ///< Seconds per F.
  std::vector<double> backward_input = {1.0};   ///< Seconds per I.
  std::vector<double> backward_weight = {1.0};  ///< Seconds per W. A B takes as long as I and W together.
  /// Additional seconds, below 0 for an action that is shorter than others: of a stage's first F of the step, of its
  /// first B, or W of a split one, and of its last B or W.
  std::vector<double> first_forward = {0.0};
  std::vector<double> first_backward = {0.0};
  std::vector<double> last_backward = {0.0};

  /// All-gathers that start when the step begins, and that a stage's first F waits for `offset` seconds after its own
  /// start; reductions that start `offset` seconds before the end of its last B or W, and that its rank waits for after
  /// its last action. By stage; empty for none. Those of a rank run one after the other, and while the rank computes,
  /// at `background_speed` of their speed.
  std::vector<std::vector<Background>> gathers = {};
  std::vector<std::vector<Background>> reductions = {};
  double background_speed = 1.0;
  /// By stage, empty for none: whether every F, and B or I, begins with a collective of the same group, which follows
  /// those in the background.
  std::vector<bool> follows_background = {};

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

struct Timeline {
  Program program;                               ///< The simulated program, with communication.
  std::vector<std::vector<TimedAction>> ranks;   ///< By rank, in the order of the list.
  std::vector<std::vector<MemoryPoint>> memory;  ///< By rank, ascending in time; empty if all bytes are 0.
  std::vector<double> busy;                      ///< By rank: seconds of computation, including the update.
  std::vector<double> first_start;               ///< By rank: start of its first computation.
  std::vector<double> last_end;                  ///< By rank: end of its last computation, without the update.
  std::vector<double> gather_waits;              ///< By rank: seconds of `busy` in which it waited for gathers,
  std::vector<double> reduction_waits;           ///< and after its last action for reductions.
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
