// Ranks as processes on CPUs, connected by Gloo.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/transport.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::mesh {

/// Time limits of a transport over Gloo.
struct GlooOptions {
  /// Time limit for all ranks to arrive: at the start, and when a group is connected.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Time limit of a collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Time that the other ranks get to report their state after a failure, before the failure is reported.
  std::chrono::milliseconds patience = std::chrono::milliseconds(2500);
  /// Breaks the connections of another transport that is used with this one, when a rank has failed. Any thread.
  std::function<void()> disconnect = {};
};

/// Rendezvous at the environment's address, where rank 0 (or the launcher) keeps a TCP store. Throws a runtime error
/// that names the ranks that did not arrive in time. The process ignores SIGPIPE from now on: if a rank ends while this
/// one writes to it, the write fails, instead of ending this process without a message.
std::unique_ptr<Transport> gloo_transport(const RankEnvironment& environment, const GlooOptions& options = {});

/// The same over a store that the caller provides. `keeps_store` states that the store ends with this rank.
std::unique_ptr<Transport> gloo_transport(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    bool local,
    bool keeps_store,
    const GlooOptions& options = {});

}  // namespace lehr::mesh
