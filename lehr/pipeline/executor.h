// Executor of one rank's list of a pipeline program.
#pragma once

#include <functional>
#include <map>

#include "lehr/mesh/group.h"
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/stage_runner.h"

namespace lehr::pipeline {

/// Options of run_program.
struct ExecutorOptions {
  at::Device device = at::kCPU;  ///< Device of received tensors.
  /// Limits a rank to two outstanding sends per peer; it waits for the oldest before it starts another one. Only for
  /// programs for which sends_may_wait (progress.h) returns true.
  bool bound_sends = false;
  /// Called after each action of this rank, with its start and end time of a steady clock in seconds.
  std::function<void(const Action& action, double start, double end)> on_action = {};
};

/// Runs the list of `rank`, this rank's index in `group`, over `stages`, the stages of this rank. All ranks of the
/// group must call it with the same program, which has communication in it. `group` is null for a program of one rank.
///
/// Receives are started in the order of the list, and the computation that needs them waits for them. Sends are waited
/// for at the end, unless bound_sends made the rank wait earlier. Tensors between two stages of one rank are passed
/// without a copy.
///
/// Throws a usage error if `stages` are not those of the rank. An error of an action is rethrown with the stage and the
/// micro-batch in front of its message.
void run_program(
    const Program& program,
    int64_t rank,
    const mesh::Group* group,
    const std::map<int64_t, StageRunner*>& stages,
    const ExecutorOptions& options = {});

}  // namespace lehr::pipeline
