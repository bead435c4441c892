// The start of ranks whose store may hold the keys of an earlier start.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lehr::mesh {

/// Returns a prefix for the keys of this start, the same on all ranks and different from that of every other start.
///
/// torchrun's agents keep one store for all starts. Each agent has a restart count of its own, so the counts of two
/// machines differ after a failure, and no variable of the environment names a start. So rank 0 publishes a random
/// name, every other rank answers with a random number, and rank 0 confirms these numbers: a rank that reads the name
/// of an earlier start gets no confirmation of its own number there, and waits for the next name.
///
/// Throws a runtime error that names the ranks that have not answered within `limit`.
std::string agree_on_start(c10d::Store& store, int64_t rank, int64_t world_size, std::chrono::milliseconds limit);

/// Returns "rank 0: ranks 1, 2 of 4 did not reach the start within 30 s".
std::string absent_ranks_text(
    int64_t rank,
    const std::vector<int64_t>& absent,
    int64_t world_size,
    const std::string& place,
    std::chrono::milliseconds limit);

}  // namespace lehr::mesh
