// Puts the sends and receives into a program of computations.
#pragma once

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// `program` with its communication. Ranks take turns, one entry each; as soon as an entry gives something that another
/// rank needs, its send follows in this rank's list and its receive is put at the end of the other rank's list so far.
/// Sends of one rank and receives of its peer thus have the same order, pair by pair. Stages on the same rank hand over
/// without communication.
///
/// Throws a usage error for a program that has communication already, or is not right as it stands (check_program),
/// a deadlock included: it names every rank that cannot go on and what it waits for.
Program add_communication(const Program& program);

}  // namespace lehr::pipeline
