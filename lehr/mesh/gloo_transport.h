// Ranks as processes on CPUs, connected by Gloo.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/rank_watch.h"
#include "lehr/mesh/transport.h"

namespace lehr::mesh {

struct GlooOptions {
  /// How long all ranks may take to come: at the start, and when a group is connected.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// How long a collective may take.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long the others get to say where they are after a failure, before it is reported.
  std::chrono::milliseconds patience = std::chrono::milliseconds(2500);
  /// Breaks connections that another transport has beside this one, when a rank has failed. Any thread.
  std::function<void()> disconnect = {};
};

/// Meets the other ranks at the environment's address, where rank 0 (or the launcher) keeps a TCP store. Throws a
/// runtime error that names the ranks that did not come in time. The process ignores SIGPIPE from now on: a rank that
/// ends while this one writes to it fails that write, and does not end this process without a word.
std::unique_ptr<Transport> gloo_transport(const RankEnvironment& environment, const GlooOptions& options = {});

/// The same over a store that the caller provides, and that `keeps_store` says ends with this rank.
std::unique_ptr<Transport> gloo_transport(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    bool local,
    bool keeps_store,
    const GlooOptions& options = {});

}  // namespace lehr::mesh
