// A group's connection by Gloo, with what c10d's has no good form of.
#pragma once

#include <chrono>
#include <functional>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lehr::mesh {

/// Ranks of one group that are connected.
struct GlooBackend {
  /// c10d's over Gloo, but for reduce_scatter. That is an all_reduce of everything there, of which each rank drops what
  /// is not its own, and its work never says that it is done. Here each rank sends the others their chunks and adds up
  /// what it gets, in the order of ranks, as ranks that are threads do.
  c10::intrusive_ptr<c10d::Backend> collectives;
  /// Breaks all connections, so that waits on other threads end. Never throws.
  std::function<void()> disconnect;
};

struct GlooBackendOptions {
  int rank = 0;
  int size = 1;
  bool local = false;                      ///< All ranks are on this machine. GLOO_SOCKET_IFNAME comes first.
  std::chrono::milliseconds init_timeout;  ///< To connect.
  std::chrono::milliseconds timeout;       ///< Of a collective.
};

/// Connects with the group's other ranks, whom it finds in `store`. Throws what c10d throws if they do not come in
/// time.
GlooBackend connect_gloo(c10::intrusive_ptr<c10d::Store> store, const GlooBackendOptions& options);

}  // namespace lehr::mesh
