// Ranks as threads of one process: for tests, debuggers and a first look at a mesh.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lehr/mesh/transport.h"

namespace lehr::mesh {

class ThreadHub;

/// What connects `world_size` threads. One object, shared by them.
std::shared_ptr<ThreadHub> make_thread_hub(
    int64_t world_size, std::chrono::milliseconds timeout = std::chrono::minutes(5));

/// The end of one rank. Collectives read the other ranks' memory directly and add in the order of ranks, so results do
/// not depend on timing. One that the members of a group call differently (another collective, size or type) is a
/// runtime error on all of them that says how.
std::unique_ptr<Transport> thread_transport(std::shared_ptr<ThreadHub> hub, int64_t rank);

/// Runs `body` on `world_size` threads, each with its transport and one ATen thread. If one throws, the collectives of
/// the others fail, all are joined, and the first exception is thrown.
void run_ranks(
    int64_t world_size,
    const std::function<void(Transport& transport)>& body,
    std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace lehr::mesh
