// Progress of a program that is executed step by step, and the dependencies that an action still misses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Records the actions that are done. In a program without communication, a computation depends on the computation of
/// the neighbouring stage. In a program with communication it depends, across ranks, on the receive, and the receive on
/// the send. All stages and micro-batches of the program must be in range.
class Progress {
 public:
  explicit Progress(const Program& program);

  /// Returns an action that must be done before `entry` can begin, or nothing if all are. Members of an entry begin
  /// together, so none of them depends on another one. A missing backward, which may be B or I, is named as I.
  std::optional<Action> missing(const Actions& entry) const;
  void finish(const Actions& entry);

 private:
  std::optional<Action> missing(const Action& action) const;
  bool is_done(const Action& action) const { return done_[index(action)] != 0; }
  size_t index(const Action& action) const;

  const Program& program_;
  bool has_communication_;
  std::vector<uint8_t> done_;  // indexed by kind, stage, micro-batch; B counts as I
};

/// Returns whether a stage sends its outputs to another rank. False for the last stage.
bool sends_forward(const Program& program, int64_t stage);

/// Executes all lists, each rank as far as it can: sends never block, receives do. Throws a usage error that names
/// every rank that is blocked and the action that it waits for.
void run_to_the_end(const Program& program);

/// Returns whether a rank may wait for its own sends: whether the program, which has communication, still ends if each
/// send blocks until its receive was started. True for programs of add_communication, where no receive is listed later
/// than its send.
bool sends_may_wait(const Program& program);

}  // namespace lehr::pipeline
