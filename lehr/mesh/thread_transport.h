// Ranks as threads of one process: for tests, debuggers and trying out a mesh.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lehr/mesh/transport.h"

namespace lehr::mesh {

class ThreadHub;

/// The connection of `world_size` threads: one object that they share.
std::shared_ptr<ThreadHub> make_thread_hub(
    int64_t world_size, std::chrono::milliseconds timeout = std::chrono::minutes(5));

/// The transport of one rank. Collectives read the other ranks' memory directly and sum in the order of ranks, so
/// results do not depend on timing. If the members of a group make different calls (another collective, size or type),
/// all of them throw a runtime error that states the difference.
std::unique_ptr<Transport> thread_transport(std::shared_ptr<ThreadHub> hub, int64_t rank);

/// Runs `body` on `world_size` threads, each with its transport and one ATen thread. If one throws, the collectives of
/// the others fail, all threads are joined, and the first exception is rethrown.
void run_ranks(
    int64_t world_size,
    const std::function<void(Transport& transport)>& body,
    std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace lehr::mesh
