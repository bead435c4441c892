// A group's connection over Gloo, with a reduce_scatter of its own.
#pragma once

#include <chrono>
#include <functional>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lehr::mesh {

/// The connection of one rank to the other ranks of a group.
struct GlooBackend {
  /// c10d's backend over Gloo, except for reduce_scatter. c10d implements it as an all_reduce of the whole input, of
  /// which each rank drops all but its own chunk, and its work never reports completion. Here each rank sends the
  /// others their chunks and sums the chunks that it receives in the order of ranks, as thread_transport does.
  c10::intrusive_ptr<c10d::Backend> collectives;
  /// Breaks all connections, so that waits on other threads end. Never throws.
  std::function<void()> disconnect;
};

/// This rank's place in a group, and the time limits of its connection.
struct GlooBackendOptions {
  int rank = 0;
  int size = 1;
  bool local = false;                      ///< All ranks are on this machine. GLOO_SOCKET_IFNAME has precedence.
  std::chrono::milliseconds init_timeout;  ///< Time limit for connecting.
  std::chrono::milliseconds timeout;       ///< Time limit of a collective.
};

/// Connects to the group's other ranks, whose addresses are in `store`. Rethrows c10d's error if they do not arrive in
/// time.
GlooBackend connect_gloo(c10::intrusive_ptr<c10d::Store> store, const GlooBackendOptions& options);

}  // namespace lehr::mesh
