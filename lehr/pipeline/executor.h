// Carries out one rank's list of a pipeline program.
#pragma once

#include <functional>
#include <map>

#include "lehr/mesh/group.h"
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/stage_runner.h"

namespace lehr::pipeline {

/// How an executor is run and watched.
struct ExecutorOptions {
  at::Device device = at::kCPU;  ///< Where received tensors are.
  /// A rank has two sends to another one under way at most, and waits for them before more: for a program for which
  /// sends_may_wait (progress.h) says so.
  bool bound_sends = false;
  /// Called when an action of this rank has ended, with the times of a steady clock in seconds.
  std::function<void(const Action& action, double start, double end)> on_action = {};
};

/// Runs the list of `rank`, which is this rank's place in `group`, over the stages that it holds. All ranks of the
/// group call it with the same program, which has communication in it; null for a program of one rank.
///
/// Receives are started where the list has them and waited for by the computation that needs them. Sends are waited for
/// at the end, if they were not before (bound_sends). Tensors between two stages of one rank are handed over as they
/// are.
///
/// Throws a usage error if `stages` are not those of the rank. What an action throws is thrown on with the stage and
/// the microbatch before its message.
void run_program(
    const Program& program,
    int64_t rank,
    const mesh::Group* group,
    const std::map<int64_t, StageRunner*>& stages,
    const ExecutorOptions& options = {});

}  // namespace lehr::pipeline
