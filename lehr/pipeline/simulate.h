// When everything of a program happens, given what each action costs: the timeline, its bubble and its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// What actions cost. Vectors are by stage; of length 1, they are the same for all stages.
struct PipelineCosts {
  std::vector<double> forward = {1.0};          ///< Seconds of an F.
  std::vector<double> backward_input = {1.0};   ///< Seconds of an I.
  std::vector<double> backward_weight = {1.0};  ///< Seconds of a W. A B takes as long as I and W together.

  /// Seconds that one microbatch's hidden states (or their gradients) take from rank to rank; null: none. Transfers
  /// from one rank to another one pass one after the other.
  std::function<double(int64_t from_rank, int64_t to_rank)> transfer = nullptr;
  double launch_latency = 0.0;  ///< Seconds before each transfer starts to move; those of different transfers overlap.

  /// How far the members of an entry such as "0F3|3B1" hide each other: 0, they take the sum of their times; 1, the
  /// longest of them.
  double overlap = 0.0;

  /// Seconds after the last action of all ranks, spent by every rank: what is left of gradient reduction, the norm of
  /// all gradients (the reason why ranks wait for each other), the optimizer.
  double update = 0.0;

  std::vector<double> activation_bytes = {0.0};  ///< Kept from a forward's start until its backward is over.
  /// What is left of it between the input half and the weight half.
  double kept_after_input_half = 1.0;
  /// Outputs of a stage for one microbatch, and their gradients. Each end of a transfer holds them beside the
  /// activations: the sender until they are gone, the receiver from when they begin to arrive until the computation
  /// that takes them begins (for a gradient: ends). The last stage's do not matter.
  std::vector<double> boundary_bytes = {0.0};
};

/// An action with its time. Of a send and a receive, the time of the transfer.
struct TimedAction {
  Action action;
  int64_t entry;  ///< Its place in the rank's list (with communication).
  double start;   ///< Seconds since the first action of all.
  double end;
  int64_t lane = 0;  ///< Members of an entry that overlap have lanes 0, 1, ...
  int64_t lanes = 1;
};

/// From `seconds` on, a rank holds `bytes`.
struct MemoryPoint {
  double seconds;
  double bytes;
};

struct Timeline {
  Program program;                               ///< What was simulated, with communication.
  std::vector<std::vector<TimedAction>> ranks;   ///< By rank, in the order of the list.
  std::vector<std::vector<MemoryPoint>> memory;  ///< By rank, in time; empty if all bytes are 0.
  std::vector<double> busy;                      ///< By rank: seconds of computing, the update included.
  std::vector<double> first_start;               ///< By rank: when its first computation starts.
  std::vector<double> last_end;                  ///< By rank: when its last computation ends, without the update.
  double makespan = 0;                           ///< Seconds from the first action to the end of the update.
  double update = 0;                             ///< Seconds of it that are the update.

  /// The share of all ranks' time in which they wait: 1 - sum(busy) / (P * makespan).
  double bubble_share() const;
  /// The same if no rank waited for others between two steps: a step then takes as long as the longest span between a
  /// rank's first and last computation. The zero-bubble papers count so. With a gradient norm over all ranks a step
  /// takes the makespan instead.
  double bubble_share_without_barrier() const;
  /// By rank, the largest number of bytes held; 0 without bytes.
  std::vector<double> peak_memory() const;
};

/// Carries out a program on paper: a computation starts when its rank is free and its inputs have arrived; sends and
/// receives cost the rank nothing. A program without communication gets it first (add_communication).
///
/// Throws a usage error for costs that are negative, not finite or of a wrong number, and for a program that is not
/// right (check_program).
Timeline simulate(const Program& program, const PipelineCosts& costs);

}  // namespace lehr::pipeline
