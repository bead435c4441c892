// Whether a program does the whole of a step, in an order that works; and how many forwards it keeps alive.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Throws a usage error that names rank, position and action unless `program` is right:
///
/// - Every stage is on a rank, and is computed and communicated by that rank only.
/// - Every stage and microbatch has one forward and, if the program has any backward, either one B or one I and one W.
/// - What an action needs comes before it: F before B, I before W, a computation before its send, a receive before the
///   computation that uses it. Members of one entry need nothing of each other.
/// - If the program has communication: every boundary between ranks has one send and one receive for each microbatch
/// and
///   direction, and none beyond that; for each ordered pair of ranks, sends and receives are in the same order.
/// - It ends: no deadlock when receives wait and sends do not.
void check_program(const Program& program);

/// By rank, the largest number of forwards alive: done, while their B or W is not. What a rank must be able to hold if
/// an input half frees nothing. An entry's forwards count before its backwards end.
std::vector<int64_t> peak_forwards(const Program& program);

/// The same if the input half already frees: forwards whose B or I is not done.
std::vector<int64_t> peak_forwards_until_input(const Program& program);

}  // namespace lehr::pipeline
