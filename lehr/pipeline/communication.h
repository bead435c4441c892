// Insertion of sends and receives into a program of computations.
#pragma once

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Returns `program` with its sends and receives. Ranks take turns, one entry each. As soon as an entry computes a
/// tensor that another rank needs, its send is appended to this rank's list and its receive to the list of the other
/// rank. Sends of a rank and receives of its peer thus have the same order for every pair of ranks. Stages on the same
/// rank need no communication.
///
/// Throws a usage error if the program already has communication or is invalid (check_program). For a deadlock, the
/// message names every rank that is blocked and the action that it waits for.
Program add_communication(const Program& program);

}  // namespace lehr::pipeline
