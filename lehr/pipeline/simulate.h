// Simulation of a program, given the cost of each action: its timeline, bubble and memory.
#pragma once

#include "lehr/pipeline/program.h"
#include "lehr/pipeline/timeline.h"

namespace lehr::pipeline {

/// Simulates a program: a computation starts when its rank is free and its inputs have arrived; sends and receives cost
/// the rank no time. Communication is added first if the program has none (add_communication).
///
/// Throws a usage error for costs that are negative, not finite or wrong in number, and for an invalid program
/// (check_program).
Timeline simulate(const Program& program, const PipelineCosts& costs);

}  // namespace lehr::pipeline
