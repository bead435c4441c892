// Checks of a pipeline program (complete, ordered, free of deadlock), and its number of live forwards.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Throws a usage error that names rank, position and action unless `program` satisfies all of these:
///
/// - Every stage has a rank, and only that rank computes and communicates it.
/// - Every stage and micro-batch has one forward and, if the program has any backward, either one B or one I and one W.
/// - The inputs of an action are ready before it: F before B, I before W, a computation before its send, a receive
///   before the computation that uses it. Members of one entry do not depend on each other.
/// - If the program has communication: every boundary between ranks has exactly one send and one receive
///   per micro-batch and direction; for each ordered pair of ranks, sends and receives are in the same
///   order.
/// - It ends: there is no deadlock when receives block and sends do not.
void check_program(const Program& program);

/// Returns, by rank, the largest number of live forwards: those that are done while their B or W is not. A rank must be
/// able to hold that many if backward_input frees nothing. The forwards of an entry count before its backwards end.
std::vector<int64_t> peak_forwards(const Program& program);

/// Like peak_forwards, if backward_input frees the activations: counts forwards whose B or I is not done.
std::vector<int64_t> peak_forwards_until_input(const Program& program);

}  // namespace lehr::pipeline
