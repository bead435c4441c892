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
  /// Called when an action of this rank has ended, with the times of a steady clock in seconds.
  std::function<void(const Action& action, double start, double end)> on_action = {};
};

/// Runs the list of `rank`, which is this rank's place in `group`, over the stages that it holds. All ranks of the
/// group call it with the same program, which has communication in it; null for a program of one rank.
///
/// Receives are started where the list has them and waited for by the computation that needs them. A rank has two sends
/// to another one under way at most, unless the program would come to a stop if it waited for them; the rest is waited
/// for at the end. Tensors between two stages of one rank are handed over as they are.
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
