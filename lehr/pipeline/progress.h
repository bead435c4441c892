// How far a program has come when it is carried out step by step, and what an action still lacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Remembers which actions are done. In a program without communication a computation needs that of the neighbouring
/// stage; with communication, across ranks, it needs the receive, and the receive needs the send. Every stage and
/// microbatch of the program must be within its bounds.
class Progress {
 public:
  explicit Progress(const Program& program);

  /// An action that must be done before `entry` can begin, if there is one that is not. Members of an entry begin
  /// together, so none of them counts for another one. Of a backward, which may be B or I, the input half is named.
  std::optional<Action> missing(const Actions& entry) const;
  void finish(const Actions& entry);

 private:
  std::optional<Action> missing(const Action& action) const;
  bool is_done(const Action& action) const { return done_[index(action)] != 0; }
  size_t index(const Action& action) const;

  const Program& program_;
  bool has_communication_;
  std::vector<uint8_t> done_;  // by kind, stage, microbatch; B counts as I
};

/// Whether a stage's outputs go to another rank. False for the last stage.
bool sends_forward(const Program& program, int64_t stage);

/// Carries out all lists, each rank as far as it can: sends never wait, receives do. Throws a usage error that names
/// every rank that cannot go on and what it waits for.
void run_to_the_end(const Program& program);

/// Whether a rank may wait for a send of its own: whether the program, which has communication, ends if each send waits
/// until its receive was started. So it does where add_communication put it in: no receive is behind its send.
bool sends_may_wait(const Program& program);

}  // namespace lehr::pipeline
